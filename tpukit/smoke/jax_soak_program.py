"""The smoke test's load in JAX, level 3, sent to workers after jax_bench_program.py."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

    from tpukit.smoke.jax_bench_program import (
        _CHAIN_SECONDS,
        _LONG,
        _MIX,
        _SHORT,
        SIZES,
        _as_known,
        _Chain,
        _hash,
        _matmul,
        _stands_in,
        _step_seconds,
    )
    from tpukit.smoke.jax_program import memory_stats, product
    from tpukit.smoke.smoke_program import INNER, digest, operands

#: The part of the free HBM to fill with patterns, and the bytes of one buffer.
_FILLED, _BUFFER = 0.9, {True: 1 << 20, False: 256 << 20}
#: Bytes to fill if a device does not say how much memory it has, such as a CPU.
_FILLED_UNKNOWN = 8 << 20
#: The words of the first two kinds of patterns; in the third kind all words differ.
_PATTERNS = (0x55555555, 0xAAAAAAAA)
_KINDS = 3
_METRICS = ("tpu_throttle_score", "ici_link_health")


def soak(seconds: float) -> dict[str, Any]:
    """Keep all devices of this worker busy, in windows, and check their results.

    `rates`: the TFLOP/s of each device, for each window.
    `wrong`: for each device, the number of windows with a wrong product or end of the chain.
    `flipped`: for each device, the number of memory words that changed.
    `metrics`: all lines from libtpu after any window, by metric, such as `tray1.chip3.ici0.int: 0`.
    """
    import jax

    window = min(10.0, seconds / 6)
    chain = _matmul(SIZES[_stands_in()]["side"])
    patterns = _patterns(_BUFFER[_stands_in()] // 4)
    devices = [_Soaked(device, chain, patterns) for device in jax.local_devices()]
    rates, began, seed = list[list[float]](), time.perf_counter(), 0
    metrics: dict[str, dict[str, None]] = {}
    while not rates or time.perf_counter() - began < seconds:
        seed += 1
        exact = _exact_digest(seed)
        threads = [threading.Thread(target=device.run, args=(window, seed)) for device in devices]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for device in devices:
            device.judge(exact)
        rates.append([device.rate for device in devices])
        for name, lines in _metrics().items():
            metrics.setdefault(name, {}).update(dict.fromkeys(lines))
    for device in devices:
        device.read(seed)
    return {
        "window_seconds": window,
        "rates": rates,
        "wrong": [device.wrong for device in devices],
        "flipped": [device.flipped for device in devices],
        "metrics": {name: list(lines)[:4096] for name, lines in metrics.items()},
    }


def _exact_digest(seed: int) -> str:
    """Return the digest of a seed's product, computed in float64, which is exact for it."""
    import numpy

    left, right = (matrix.astype(float) for matrix in operands(INNER, seed))
    return digest((left @ right).astype(numpy.float32))


def _patterns(words: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two functions: one makes a buffer's pattern, one counts the words that differ from it.

    The three kinds of patterns take turns. Each word contains the buffer's number.
    """
    import jax
    import jax.numpy as jnp

    def pattern(kind: "jax.Array", number: "jax.Array") -> "jax.Array":
        index = jnp.arange(words, dtype=jnp.uint32)
        mixed = index * jnp.uint32(_MIX) ^ (index >> 7)
        alike = [jnp.uint32(word) for word in _PATTERNS]
        return jnp.select([kind == 0, kind == 1], alike, mixed) ^ number

    return jax.jit(pattern), jax.jit(lambda buffer, *which: (buffer != pattern(*which)).sum())


class _Soaked:
    """One device under load, with memory full of patterns and products to check."""

    def __init__(
        self,
        device: "jax.Device",
        chain: "_Chain",
        patterns: tuple[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        import jax

        self.device, self._chain = device, chain
        self.rate, self.wrong, self.flipped = 0.0, 0, 0
        self._results: tuple[Any, ...] = ()
        self._write, self._differing = patterns
        self._arguments = jax.device_put(chain.make(), device)
        begun = jax.block_until_ready(chain.run(_SHORT, *self._arguments))
        taken, _ = _step_seconds(chain.run, self._arguments, (_SHORT, _LONG))
        self._steps = max(_LONG, int(_CHAIN_SECONDS[_stands_in()] / taken))
        # If the short chain ends with wrong numbers, no end of the long chain counts as right.
        known = _as_known(begun, chain, _SHORT)
        self._end = _hash(chain.run(self._steps, *self._arguments)) if known else None
        stats = memory_stats(device)
        free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
        # Leave room for the product of each window and for a comparison.
        buffer = _BUFFER[_stands_in()]
        room = _FILLED * free - 8 * buffer if free else _FILLED_UNKNOWN
        self._buffers: list[Any] = [None] * max(1, int(room // buffer))
        with jax.default_device(device):
            int(self._differing(self._write(*_pattern_of(0, 0)), *_pattern_of(0, 0)))

    def run(self, seconds: float, seed: int) -> None:
        import jax
        import jax.numpy as jnp
        import numpy

        self.read(seed - 1)
        with jax.default_device(self.device):
            for number in range(len(self._buffers)):
                self._buffers[number] = None  # first, because the memory is full
                self._buffers[number] = self._write(*_pattern_of(seed, number))
            jax.block_until_ready(self._buffers)
        factors = [matrix.astype(jnp.bfloat16) for matrix in operands(INNER, seed)]
        steps, began = 0, time.perf_counter()
        while not steps or time.perf_counter() - began < seconds:
            end = jax.block_until_ready(self._chain.run(self._steps, *self._arguments))
            steps += self._steps
        self.rate = steps * self._chain.amount / (time.perf_counter() - began)
        result = product(*jax.device_put(factors, self.device))
        used = {used for array in (end, result, *self._buffers) for used in array.devices()}
        bits = digest(numpy.asarray(result))
        self._results = bits, _hash(end), used

    def read(self, seed: int) -> None:
        """Count the words of memory that have changed since this seed's window wrote them."""
        import jax

        with jax.default_device(self.device):
            for number, buffer in enumerate(self._buffers):
                if buffer is not None:
                    self.flipped += int(self._differing(buffer, *_pattern_of(seed, number)))

    def judge(self, exact: str) -> None:
        self.wrong += self._results != (exact, self._end, {self.device})


def _pattern_of(seed: int, number: int) -> "tuple[jax.Array, jax.Array]":
    """Return the kind of a window's patterns and a buffer's number as values for a device."""
    import jax.numpy as jnp

    return jnp.int32(seed % _KINDS), jnp.uint32(number)


def _metrics() -> dict[str, list[str]]:
    """Return the lines of libtpu's monitoring by metric; it needs libtpu 0.0.42."""
    lines = {}
    try:
        from libtpu.sdk import tpumonitoring

        for name in _METRICS:
            lines[name] = [str(line) for line in tpumonitoring.get_metric(name).data()][:4096]
    except Exception:
        pass  # an older libtpu, or no such metric
    return lines
