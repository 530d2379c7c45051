"""The smoke test's load in JAX, level 3; a worker gets jax_bench_program.py before it."""

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

#: Of what a device offers of its HBM, the part that is filled with patterns; bytes of one buffer.
_FILLED, _BUFFER = 0.9, {True: 1 << 20, False: 256 << 20}
#: Bytes that are filled where a device does not say what it offers, as a CPU does not.
_FILLED_UNKNOWN = 8 << 20
#: Two kinds of patterns; in the third one the words differ.
_PATTERNS = (0x55555555, 0xAAAAAAAA)
_KINDS = 3
_METRICS = ("tpu_throttle_score", "ici_link_health")


def soak(seconds: float) -> dict[str, Any]:
    """Keep all devices of this worker busy at once, in windows, and look at what they find.

    `rates`: for each window TFLOP/s of each device. `wrong`: for each device in how many windows
    a product, or the end of its chain, was wrong, `flipped`: how many words of its memory had
    changed. `metrics`: by name all that libtpu has said after any window, such as
    `tray1.chip3.ici0.int: 0`.
    """
    import jax

    window, chain, patterns = (
        min(10.0, seconds / 6),
        _matmul(SIZES[_stands_in()]["side"]),
        _patterns(_BUFFER[_stands_in()] // 4),
    )
    workers = [_Soaked(device, chain, patterns) for device in jax.local_devices()]
    rates, began, seed = list[list[float]](), time.perf_counter(), 0
    metrics: dict[str, dict[str, None]] = {}
    while not rates or time.perf_counter() - began < seconds:
        seed += 1
        exact = _exact_digest(seed)
        threads = [threading.Thread(target=each.run, args=(window, seed)) for each in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in workers:
            each.judge(exact)
        rates.append([each.rate for each in workers])
        for name, said in _metrics().items():
            metrics.setdefault(name, {}).update(dict.fromkeys(said))
    for each in workers:
        each.read(seed)
    return {
        "window_seconds": window,
        "rates": rates,
        "wrong": [each.wrong for each in workers],
        "flipped": [each.flipped for each in workers],
        "filled_bytes": [each.filled for each in workers],
        "metrics": {name: list(said)[:4096] for name, said in metrics.items()},
    }


def _exact_digest(seed: int) -> str:
    """Return the digest of a seed's product, in numbers of 53 bits, which are exact for it."""
    import numpy

    left, right = (
        numpy.frombuffer(words, numpy.int16).reshape(shape).astype(float)
        for words, shape in operands(INNER, seed)
    )
    return digest((left @ right).astype(numpy.float32))


def _patterns(words: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return what makes the pattern of a buffer, and what counts the words that differ from it.

    There are three kinds of patterns, in turn; each has the buffer's number in every word.
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
    """One device under load: its memory is filled with patterns, its products are looked at."""

    def __init__(
        self,
        device: "jax.Device",
        chain: "_Chain",
        patterns: tuple[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        import jax

        self.device, self._chain = device, chain
        self.rate, self.wrong, self.flipped = 0.0, 0, 0
        self._found: tuple[Any, ...] = ()
        self._write, self._differing = patterns
        self._arguments = jax.device_put(chain.make(), device)
        begun = jax.block_until_ready(chain.run(_SHORT, *self._arguments))
        taken, _ = _step_seconds(chain.run, self._arguments, (_SHORT, _LONG))
        self._steps = max(_LONG, int(_CHAIN_SECONDS[_stands_in()] / taken))
        # Nothing is right for a device whose short chain ends with other numbers.
        known = _as_known(begun, chain, _SHORT)
        self._end = _hash(chain.run(self._steps, *self._arguments)) if known else None
        stats = memory_stats(device)
        free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
        # Room for the product of each window, and for what a comparison needs.
        buffer = _BUFFER[_stands_in()]
        room = _FILLED * free - 8 * buffer if free else _FILLED_UNKNOWN
        self._buffers: list[Any] = [None] * max(1, int(room // buffer))
        self.filled = len(self._buffers) * buffer
        with jax.default_device(device):
            int(self._differing(self._write(*_pattern_of(0, 0)), *_pattern_of(0, 0)))

    def run(self, seconds: float, seed: int) -> None:
        import jax
        import jax.numpy as jnp
        import numpy

        self.read(seed - 1)
        with jax.default_device(self.device):
            for number in range(len(self._buffers)):
                self._buffers[number] = None  # before its successor is made: memory is full
                self._buffers[number] = self._write(*_pattern_of(seed, number))
            jax.block_until_ready(self._buffers)
        factors = [
            numpy.frombuffer(words, numpy.int16).reshape(shape).astype(jnp.bfloat16)
            for words, shape in operands(INNER, seed)
        ]
        steps, began = 0, time.perf_counter()
        while not steps or time.perf_counter() - began < seconds:
            end = jax.block_until_ready(self._chain.run(self._steps, *self._arguments))
            steps += self._steps
        self.rate = steps * self._chain.amount / (time.perf_counter() - began)
        found = product(*jax.device_put(factors, self.device))
        used = {used for array in (end, found, *self._buffers) for used in array.devices()}
        bits = digest(numpy.asarray(found))
        self._found = bits, _hash(end), used

    def read(self, seed: int) -> None:
        """Count the words of memory that are no longer what this seed's window wrote."""
        import jax

        with jax.default_device(self.device):
            for number, buffer in enumerate(self._buffers):
                if buffer is not None:
                    self.flipped += int(self._differing(buffer, *_pattern_of(seed, number)))

    def judge(self, exact: str) -> None:
        self.wrong += self._found != (exact, self._end, {self.device})


def _pattern_of(seed: int, number: int) -> "tuple[jax.Array, jax.Array]":
    """Return the kind of a window's patterns, and a buffer's number, for a device."""
    import jax.numpy as jnp

    return jnp.int32(seed % _KINDS), jnp.uint32(number)


def _metrics() -> dict[str, list[str]]:
    """Return what libtpu's own monitoring says, where this libtpu has it (0.0.42 and later)."""
    found = {}
    try:
        from libtpu.sdk import tpumonitoring

        for name in _METRICS:
            found[name] = [str(each) for each in tpumonitoring.get_metric(name).data()][:4096]
    except Exception:
        pass  # what there is
    return found
