"""The smoke test's measurements in JAX for levels 2 and 3, sent to workers after jax_program.py.

Each figure is of a chain of steps in one compiled loop, in which each step needs the one before.
The time of a step comes from the difference between a long and a short loop (the best of three),
without the cost of starting a loop. Formulas: AI-Hypercomputer/accelerator-microbenchmarks
(2026-08).

A loop writes the result of a step over the result of the step before. A product or an exchange
cannot overwrite its input: with one of them in a step, the compiler adds a copy, which takes a
quarter of a product's time on v6e. So a step has two of them. Arrays have rows of 128 words,
because TPUs pad shorter rows and single rows.
"""

import functools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import jax
    import numpy

    from tpukit.smoke.jax_program import product

Pairs = Sequence[tuple[int, int]]

#: On CPU devices (True) and on TPU devices: the rows of a product, the bytes of other figures.
SIZES: dict[bool, dict[str, Any]] = {
    True: {
        "side": 256,
        "memory": 4 << 20,
        "host": 4 << 20,
        "all-reduce": (1 << 20,),
        "link": 1 << 18,
    },
    False: {
        "side": 8192,
        "memory": 512 << 20,
        "host": 256 << 20,
        "all-reduce": (64 << 20, 256 << 20),
        "link": 64 << 20,
    },
}
#: The steps of a chain across devices. They must be equal on all workers, or no worker would end.
_SHORT, _LONG = 2, 34
#: The least seconds for the long chain of one device, on CPU devices (True) and on TPU devices.
_CHAIN_SECONDS = {True: 0.01, False: 0.3}
_REPEATS, _PASSES = 3, 2
#: The words of a row.
_COLUMNS = 128
#: Knuth's multiplicative hash.
_MIX = 2654435761


class _Chain(NamedTuple):
    """Steps for one device to repeat: `run(steps, *make())` returns their end, a matrix."""

    run: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]  #: returns the arguments, NumPy arrays
    amount: float  #: 10**12 operations, or 10**9 bytes, of one step
    rows_after: Callable[[int], Any]  #: returns the `_rows` of the end after a number of steps
    tolerance: float  #: the largest relative error of these rows


def bench() -> dict[str, Any]:
    """Return the figures of this worker's devices, and this worker's figures of the slice.

    `devices`: by figure, for each device, one value for each pass: TFLOP/s for `matmul`, else GB/s.
    `right`: by figure, for each device, True if its values were right.
    `all_reduce`: (bytes of each device, GB/s, True if the values were right).
    `links` with an end on this worker: (from, to, GB/s of one way while both are used, True if the
    values were right), with the devices' numbers in the slice.
    """
    import jax

    sizes, own = SIZES[_stands_in()], jax.local_devices()
    figures, right = {}, {}
    for what, chain in (("matmul", _matmul(sizes["side"])), ("hbm", _memory(sizes["memory"]))):
        figures[what], right[what] = _each(own, chain)
    there, back, arrived = zip(*(_host(device, sizes["host"]) for device in own), strict=True)
    for what, passes in (("host-to-device", there), ("device-to-host", back)):
        figures[what], right[what] = list(passes), list(arrived)
    return {
        "devices": figures,
        "right": right,
        "all_reduce": [_all_reduce(jax.devices(), size) for size in sizes["all-reduce"]],
        "links": [
            link
            for pairs in _matchings(jax.devices())
            for link in _links(jax.devices(), pairs, sizes["link"])
        ],
    }


def _stands_in() -> bool:
    import jax

    return jax.devices()[0].platform == "cpu"


def _timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Return the seconds that `work` takes, and its result."""
    import jax

    started = time.perf_counter()
    end = jax.block_until_ready(work(*arguments))
    return time.perf_counter() - started, end


def _step_seconds(
    run: Callable[..., Any], arguments: tuple[Any, ...], steps: tuple[int, int]
) -> tuple[float, Any]:
    """Return the seconds of one step of a chain, and the end of the long chain."""
    best = []
    for count in steps:
        seconds = []
        for _ in range(_REPEATS):
            taken, end = _timed(run, count, *arguments)
            seconds.append(taken)
        best.append(min(seconds))
    short, long = best
    return max(long - short, long / 10) / (steps[1] - steps[0]), end


def _each(devices: "list[jax.Device]", chain: _Chain) -> tuple[list[list[float]], list[bool]]:
    """Return the figures of each device, one for each pass, and True for each right device.

    A device is right if some known rows of its short chain are right, and if its long chain ends
    with the same bits as most others, in every pass, and not with those of its short chain.
    """
    import jax

    made = [jax.device_put(chain.make(), device) for device in devices]
    begun = jax.block_until_ready([chain.run(_SHORT, *arguments) for arguments in made])
    known = [
        end.devices() == {device} and _as_known(end, chain, _SHORT)
        for device, end in zip(devices, begun, strict=True)
    ]
    short = [_hash(end) for end in begun]
    del begun
    long = _LONG
    while _timed(chain.run, long, *made[0])[0] < _CHAIN_SECONDS[_stands_in()]:
        long *= 2
    figures: list[list[float]] = [[] for _ in devices]
    ends: list[list[int]] = [[] for _ in devices]
    for _ in range(_PASSES):
        for at, arguments in enumerate(made):
            seconds, end = _step_seconds(chain.run, arguments, (_SHORT, long))
            figures[at].append(chain.amount / seconds)
            ends[at].append(_hash(end))
    usual = statistics.mode(end for own in ends for end in own)
    return figures, [
        known[at] and {*ends[at]} == {usual} and usual != short[at] for at in range(len(devices))
    ]


def _as_known(end: "jax.Array", chain: _Chain, steps: int) -> bool:
    """Return True if some rows of a chain's end are right for this number of steps."""
    import numpy

    rows, right = numpy.asarray(_rows(end)).astype(float), chain.rows_after(steps)
    return bool(numpy.linalg.norm(rows - right) <= chain.tolerance * numpy.linalg.norm(right))


def _rows(value: Any) -> Any:
    """Return five rows of a matrix, with even and odd numbers."""
    return value[:: len(value) // 4 - 1]


def _hash(value: "jax.Array") -> int:
    """Return a 32-bit hash of all words of a matrix and their places."""
    return int(_hashing()(value))


@functools.cache
def _hashing() -> Any:
    """Return the compiled function of `_hash`."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def hashed(value: "jax.Array") -> "jax.Array":
        words = jax.lax.bitcast_convert_type(value, f"uint{8 * value.dtype.itemsize}")
        row, column = (jax.lax.broadcasted_iota(jnp.uint32, value.shape, axis) for axis in (0, 1))
        place = row * jnp.uint32(_MIX) ^ column * jnp.uint32(_MIX >> 8) | 1
        return (words.astype(jnp.uint32) * place).sum(dtype=jnp.uint32)

    return hashed


def _matmul(side: int) -> _Chain:
    """Return the chain x @ w @ w.

    The numbers are random, because zeros need no power. w keeps the size of x.
    """
    import jax
    import jax.numpy as jnp
    import numpy

    @jax.jit
    def run(steps: int, x: "jax.Array", w: "jax.Array") -> "jax.Array":
        def step(_: int, value: "jax.Array") -> "jax.Array":
            once = product(value, w).astype(jnp.bfloat16)
            return product(once, w).astype(jnp.bfloat16)

        return jax.lax.fori_loop(0, steps, step, x)

    @functools.cache
    def make() -> tuple[Any, ...]:
        random = numpy.random.default_rng(0)
        x, w = random.standard_normal((2, side, side), dtype=numpy.float32)
        return x.astype(jnp.bfloat16), (w / side**0.5).astype(jnp.bfloat16)

    @functools.cache
    def rows_after(steps: int) -> "numpy.ndarray":
        x, w = make()
        rows, w = _rows(x), w.astype(numpy.float32)
        for _ in range(2 * steps):
            rows = (rows.astype(numpy.float32) @ w).astype(jnp.bfloat16)
        return rows.astype(float)

    # A device adds in another order, which sometimes rounds to another bfloat16.
    return _Chain(run, make, 2 * 2 * side**3 / 1e12, rows_after, tolerance=0.01)


def _memory(size: int) -> _Chain:
    """Return the chain x + 1, which reads and writes each word."""
    import jax
    import numpy

    @jax.jit
    def run(steps: int, x: "jax.Array", one: "jax.Array") -> "jax.Array":
        return jax.lax.fori_loop(0, steps, lambda _, value: value + one, x)

    @functools.cache
    def make() -> tuple[Any, ...]:
        return numpy.arange(size // 4, dtype=numpy.int32).reshape(-1, _COLUMNS), numpy.int32(1)

    def rows_after(steps: int) -> "numpy.ndarray":
        return _rows(make()[0]).astype(float) + steps

    return _Chain(run, make, 2 * size / 1e9, rows_after, tolerance=0)


def _host(device: "jax.Device", size: int) -> tuple[list[float], list[float], bool]:
    """Return GB/s to a device and back, for each pass, and True if all values came back."""
    import jax
    import numpy

    words: Any = numpy.arange(size // 4, dtype=numpy.int32)
    there, back, right = list[float](), list[float](), True
    for number in range(_PASSES):
        seconds: tuple[list[float], list[float]] = [], []
        words = words + number
        for _ in range(_REPEATS):
            started = time.perf_counter()
            moved = jax.block_until_ready(jax.device_put(words, device))
            arrived = time.perf_counter()
            returned = jax.device_get(moved)
            seconds[0].append(arrived - started)
            seconds[1].append(time.perf_counter() - arrived)
        right = right and numpy.array_equal(returned, words)
        there.append(size / max(min(seconds[0]), 1e-6) / 1e9)
        back.append(size / max(min(seconds[1]), 1e-6) / 1e9)
    return there, back, right


def _across(
    devices: "list[jax.Device]",
    size: int,
    step: Callable[[Any], Any],
    last: Callable[[Any], Any] = lambda value: value,
) -> tuple[Callable[..., Any], Any]:
    """Return a chain of `step` over all devices, ended by `last`, and its argument's shape.

    The shape includes the sharding; `_begin` makes the array.
    """
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh, split = Mesh(numpy.array(devices), ("device",)), PartitionSpec("device")
    shape = (len(devices) * size // (4 * _COLUMNS), _COLUMNS)

    def chain(steps: int, x: "jax.Array") -> "jax.Array":
        return last(jax.lax.fori_loop(0, steps, lambda _, value: step(value), x))

    whole = PartitionSpec()
    mapped = jax.shard_map(
        chain, mesh=mesh, in_specs=(whole, split), out_specs=split, check_vma=False
    )
    array = jax.ShapeDtypeStruct(shape, numpy.float32, sharding=NamedSharding(mesh, split))
    return jax.jit(mapped), array


def _begin(array: "jax.ShapeDtypeStruct", count: int) -> "jax.Array":
    """Return the argument of a chain over `count` devices."""
    import jax
    import numpy

    rows = array.shape[0] // count

    def part(index: tuple[slice, ...]) -> numpy.ndarray:
        numbers = _numbers(count, (index[0].start or 0) // rows, rows)
        return numpy.broadcast_to(numbers, (rows, _COLUMNS))

    return jax.make_array_from_callback(array.shape, array.sharding, part)


def _numbers(count: int, device: int, rows: int) -> "numpy.ndarray":
    """Return the numbers of a device's rows: each device has the largest number in some rows."""
    import numpy

    return ((numpy.arange(rows, dtype=numpy.int32)[:, None] + device) % count).astype("float32")


def _shards(array: "jax.Array", count: int) -> "dict[int, jax.Array]":
    """Return the parts of an array on this worker, by the device's number in the slice."""
    rows = array.shape[0] // count
    return {(shard.index[0].start or 0) // rows: shard.data for shard in array.addressable_shards}


def _reducing(devices: "list[jax.Device]", size: int) -> tuple[Callable[..., Any], Any, float]:
    """Return the chain of all-reduces, its argument's shape, and 10**9 bytes of a step.

    It takes the largest numbers, which do not grow. A sum would have to be divided, in another pass
    through HBM.
    """
    import jax

    count = len(devices)
    amount = 2 * (count - 1) / count * size / 1e9
    return *_across(devices, size, lambda value: jax.lax.pmax(value, "device")), amount


def _all_reduce(devices: "list[jax.Device]", size: int) -> tuple[int, float, bool]:
    import jax

    count = len(devices)
    run, array, amount = _reducing(devices, size)
    begin = _begin(array, count)
    jax.block_until_ready(run(_SHORT, begin))
    seconds, end = _step_seconds(run, (begin,), (_SHORT, _LONG))
    right = all(bool((held == count - 1).all()) for held in _shards(end, count).values())
    return size, amount / seconds, right


def _exchanging(
    devices: "list[jax.Device]", pairs: Pairs, size: int
) -> tuple[Callable[..., Any], Any, float]:
    """Return the chain of two exchanges in a step, its argument's shape, and 10**9 bytes one way.

    After one more exchange at the end, each device has the numbers of its partner.
    """
    import jax

    both = [*pairs, *((other, one) for one, other in pairs)]

    def swap(value: "jax.Array") -> "jax.Array":
        return jax.lax.ppermute(value, "device", both)

    return *_across(devices, size, lambda value: swap(swap(value)), swap), 2 * size / 1e9


def _links(
    devices: "list[jax.Device]", pairs: Pairs, size: int
) -> list[tuple[int, int, float, bool]]:
    """Return the figures of the links between pairs of neighbours, which all exchange at once.

    A pair waits only for its own exchanges, so the time of its ends is that of its link.
    """
    count = len(devices)
    run, array, amount = _exchanging(devices, pairs, size)
    begin = _begin(array, count)
    _end_seconds(run, begin, count, _LONG)
    runs = {}
    for steps in (_SHORT, _LONG):
        runs[steps] = [_end_seconds(run, begin, count, steps) for _ in range(_REPEATS)]
    rows = array.shape[0] // count
    partner = {end: other for pair in pairs for end, other in (pair, pair[::-1])}
    right = {
        end: bool((held == _numbers(count, partner[end], rows)).all())
        for end, held in _shards(run(_LONG, begin), count).items()
        if end in partner
    }
    figures = []
    for one, other in pairs:
        own = [end for end in (one, other) if end in right]
        if own:
            short, long = (
                min(max(seconds[end] for end in own) for seconds in runs[steps])
                for steps in (_SHORT, _LONG)
            )
            seconds = max(long - short, long / 10, 1e-9) / (_LONG - _SHORT)
            figures.append((one, other, amount / seconds, all(right[end] for end in own)))
    return figures


def _end_seconds(
    run: Callable[..., Any], begin: "jax.Array", count: int, steps: int
) -> dict[int, float]:
    """Return the seconds until each device of this worker had done its part of a chain."""
    import jax

    started, ends = time.perf_counter(), dict[int, float]()

    def wait(device: int, held: "jax.Array") -> None:
        jax.block_until_ready(held)
        ends[device] = time.perf_counter() - started

    threads = [
        threading.Thread(target=wait, args=shard)
        for shard in _shards(run(steps, begin), count).items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def _matchings(devices: "Sequence[jax.Device]") -> list[list[tuple[int, int]]]:
    """Return pairs of devices with a link between their chips, in groups without common devices.

    Chips are neighbours if one coordinate differs by 1. For each axis there is a group for pairs
    that start at an even coordinate, and one for odd. The links that close a torus are left out,
    because not every slice has them.
    """
    places = [getattr(device, "coords", None) for device in devices]
    if None in places:  # CPU devices: a row of them
        places = [(index,) for index in range(len(devices))]
    first = {tuple(place): len(places) - 1 - at for at, place in enumerate(reversed(places))}
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for place, index in sorted(first.items(), key=lambda item: item[1]):
        for axis in range(len(place)):
            near = first.get((*place[:axis], place[axis] + 1, *place[axis + 1 :]))
            if near is not None:
                groups.setdefault((axis, place[axis] % 2), []).append((index, near))
    return [groups[key] for key in sorted(groups)]
