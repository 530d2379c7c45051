"""Times the steps of a training program for `tpukit diagnose`.

    from tpukit_steps import steps
    for batch in steps(loader):

Under `tpukit diagnose`, it times the loop's first steps in turns: some steps with the loader's
batches, then as many with one repeated batch. Turns even out the changing load of a busy worker.
Then it times the loader alone, writes the results to the file that TPUKIT_DIAGNOSE names, and ends
the program before it saves anything. Otherwise `steps` returns the loader itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

#: The first steps are not timed, because they compile.
_WARM = 3
#: Turns in which both kinds of steps are timed.
_TURNS = 4
_COMPILED = "/jax/core/compile/backend_compile_duration"


def steps(loader: Iterable[Any], count: int = 0) -> Iterable[Any]:
    """Return the loader; under `tpukit diagnose`, batches that time `count` steps of each kind."""
    path = os.environ.get("TPUKIT_DIAGNOSE")
    if not path:
        return loader
    return _timed(loader, count or int(os.environ.get("TPUKIT_DIAGNOSE_STEPS") or 20), path)


class _Batches:
    """The loader's batches, and the seconds they took; restarts the loader at its end."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader, self._left = loader, iter(loader)
        self.seconds = 0.0
        self.shapes: set[str] = set()

    def take(self) -> Any:
        started = time.perf_counter()
        try:
            batch = next(self._left)
        except StopIteration:
            self._left = iter(self._loader)
            try:
                batch = next(self._left)
            except StopIteration:
                raise SystemExit(
                    "tpukit diagnose: the loader has no batches, or cannot be iterated twice"
                ) from None
        self.seconds += time.perf_counter() - started
        self.shapes.add(str(_shape(batch)))
        return batch


def _timed(loader: Iterable[Any], count: int, path: str) -> Iterator[Any]:
    batches, compiled = _Batches(loader), _Compilations()
    for _ in range(_WARM):
        last = batches.take()
        yield last
    _wait()
    batches.shapes.clear()
    real = cached = waited = 0.0
    during, busy, duty = 0, (0, 0), None
    following = batches.take()
    for turn in range(_TURNS):
        steps = range(count * turn // _TURNS, count * (turn + 1) // _TURNS)
        before, times, batches.seconds = compiled.number(), _processor_times(), 0.0
        started = time.perf_counter()
        for _ in steps:
            last = following
            yield last
            following = batches.take()  # while the devices still compute, as in a normal loop
        _wait()
        real, waited = real + time.perf_counter() - started, waited + batches.seconds
        during, busy = during + compiled.number() - before, _more(busy, times)
        duty = _duty_cycle()
        started = time.perf_counter()
        for _ in steps:
            yield last
        _wait()
        cached += time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(count):
        batches.take()
    alone = time.perf_counter() - started
    results = {
        "steps": count,
        "real_seconds": real / count,
        "cached_seconds": cached / count,
        "input_seconds": alone / count,
        "waited_seconds": waited / count,
        "compilations": during,
        "shapes": len(batches.shapes),
        "busy": busy[1] / max(1, busy[0]),
        "processors": os.cpu_count() or 1,
        "duty_cycle": duty,
    }
    with open(path, "w") as file:
        json.dump(results, file)
    raise SystemExit(0)


def _shape(batch: Any) -> object:
    if isinstance(batch, dict):
        return {key: _shape(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_shape(part) for part in batch]
    shape = getattr(batch, "shape", None)
    return type(batch).__name__ if shape is None else tuple(shape)


def _wait() -> None:
    """Wait for the devices: a step returns before its computation ends."""
    if "jax" in sys.modules:
        for array in sys.modules["jax"].live_arrays():
            array.block_until_ready()
    if "torch_xla" in sys.modules:
        import torch_xla

        torch_xla.sync(wait=True)


class _Compilations:
    """Counts the compilations of JAX or PyTorch/XLA."""

    def __init__(self) -> None:
        self._jax = 0
        if "jax" in sys.modules:
            import jax.monitoring

            jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **more: object) -> None:
        self._jax += event == _COMPILED

    def number(self) -> int:
        if "torch_xla" not in sys.modules:
            return self._jax
        import torch_xla.debug.metrics as metrics

        return self._jax + int((metrics.metric_data("CompileTime") or [0])[0])


def _processor_times() -> tuple[int, int]:
    """Return the total and the busy time of all processors since boot; 0, 0 if unknown."""
    try:
        with open("/proc/stat") as file:
            times = [int(word) for word in file.readline().split()[1:9]]
    except OSError:
        return 0, 0
    return sum(times), sum(times) - times[3] - times[4]


def _more(sums: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
    """Return the sums with the processors' times since `before`."""
    now = _processor_times()
    return sums[0] + now[0] - before[0], sums[1] + now[1] - before[1]


def _duty_cycle() -> float | None:
    """Return the mean over the chips, in percent; None without libtpu 0.0.42 or later."""
    try:
        from libtpu.sdk import tpumonitoring

        values = [float(figure) for figure in tpumonitoring.get_metric("duty_cycle_pct").data()]
        return sum(values) / len(values)
    except Exception:
        return None
