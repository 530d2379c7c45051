"""What a training program asks for its batches, so that `tpukit diagnose` can time its steps.

    from tpukit_steps import steps
    for batch in steps(loader):

Under `tpukit diagnose` the loop's first steps are timed in turns, some as they are, then as many
with one batch again and again, because a busy worker is not as busy all the time; then the loader
alone. What was found goes into the file TPUKIT_DIAGNOSE names, and the program ends there, before
it saves anything. Otherwise `steps` is the loader itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

#: Steps that are not timed: they compile.
_WARM = 3
#: Turns in which both kinds of steps are timed.
_TURNS = 4
_COMPILED = "/jax/core/compile/backend_compile_duration"


def steps(loader: Iterable[Any], count: int = 0) -> Iterable[Any]:
    """Yield the loader's batches; under `tpukit diagnose` time `count` steps of each kind."""
    path = os.environ.get("TPUKIT_DIAGNOSE")
    if not path:
        return loader
    return _timed(loader, count or int(os.environ.get("TPUKIT_DIAGNOSE_STEPS") or 20), path)


class _Batches:
    """The loader's batches, from its beginning again after its end, and what they cost."""

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
                raise SystemExit("tpukit diagnose: the loader has no batch, or only once") from None
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
            following = batches.take()  # while the devices still compute, as in any loop
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
    found = {
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
        json.dump(found, file)
    raise SystemExit(0)


def _shape(batch: Any) -> object:
    if isinstance(batch, dict):
        return {key: _shape(each) for key, each in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_shape(each) for each in batch]
    shape = getattr(batch, "shape", None)
    return type(batch).__name__ if shape is None else tuple(shape)


def _wait() -> None:
    """Wait for what the devices still compute: a step returns before it is done."""
    if "jax" in sys.modules:
        for array in sys.modules["jax"].live_arrays():
            array.block_until_ready()
    if "torch_xla" in sys.modules:
        import torch_xla

        torch_xla.sync(wait=True)


class _Compilations:
    """How often JAX or PyTorch/XLA has compiled since this was made."""

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
    """Return the time that all processors had, and that they were busy, since the start."""
    try:
        with open("/proc/stat") as file:
            times = [int(each) for each in file.readline().split()[1:9]]
    except OSError:
        return 0, 0
    return sum(times), sum(times) - times[3] - times[4]


def _more(sums: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
    """Return the sums with the processors' times since `before`."""
    now = _processor_times()
    return sums[0] + now[0] - before[0], sums[1] + now[1] - before[1]


def _duty_cycle() -> float | None:
    """Return the mean over the chips, in percent, where libtpu tells it (0.0.42 and later)."""
    try:
        from libtpu.sdk import tpumonitoring

        values = [float(each) for each in tpumonitoring.get_metric("duty_cycle_pct").data()]
        return sum(values) / len(values)
    except Exception:
        return None
