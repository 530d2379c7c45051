"""The smoke test's measurements in JAX, levels 2 and 3; a worker gets jax_program.py before it.

Each figure is of a chain in which every step needs the one before it, in one compiled loop: what
the loop takes with `_LONG` steps less what it takes with `_SHORT`, best of three, leaves out what
it costs to start it. Formulas: AI-Hypercomputer/accelerator-microbenchmarks (2026-08).

A loop writes a step's result over what the step before it left. A product, and an exchange, cannot
write over what they read: with one of them a step, the compiler adds a copy, of a quarter of a
product's time on v6e. So a step has two of them. Arrays have rows of 128 words, because TPUs pad
shorter rows and single ones.
"""

import functools
import statistics
import threading
import time
import typing

#: On CPU devices, and on a TPU's: rows of a product, bytes of the other figures.
SIZES = {
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
#: Steps of a chain across devices: the same on every worker, or none would end.
_SHORT, _LONG = 2, 34
#: Seconds that the long chain of one device takes at least, on CPU devices and on a TPU's.
_CHAIN_SECONDS = {True: 0.01, False: 0.3}
_REPEATS, _PASSES = 3, 2
#: Of what a device offers of its HBM, the part that is filled with patterns; bytes of one buffer.
_FILLED, _BUFFER = 0.9, {True: 1 << 20, False: 256 << 20}
#: Bytes that are filled where a device does not say what it offers, as a CPU does not.
_FILLED_UNKNOWN = 8 << 20
#: Two kinds of patterns; in the third one the words differ.
_PATTERNS = (0x55555555, 0xAAAAAAAA)
_KINDS = 3
#: Words of a row: shorter rows, and single ones, are padded.
_COLUMNS = 128
#: Knuth's multiplicative hash.
_MIX = 2654435761
_METRICS = ("tpu_throttle_score", "ici_link_health")


class _Chain(typing.NamedTuple):
    """Steps that one device repeats: `run(steps, *make())` returns what they end with."""

    run: typing.Callable
    make: typing.Callable  #: return the arguments, NumPy arrays
    amount: float  #: 10**12 operations, or 10**9 bytes, of one step
    rows_after: typing.Callable  #: return the `_rows` of what so many steps end with
    tolerance: float  #: how far off they may be, as a part of them


def bench() -> dict:
    """Return the figures of this worker's devices, and of the slice as this worker sees it.

    `devices`: for each what, for each device, a figure a pass; TFLOP/s for `matmul`, else GB/s.
    `right`: for each what, for each device, whether it found the right values.
    `all_reduce`: (bytes a device, GB/s, whether the values were right). `links`, those with an end
    on this worker: (from, to, GB/s one way, with as much the other way, whether the values were
    right), devices by their index.
    """
    import jax

    sizes, own = SIZES[_stands_in()], jax.local_devices()
    figures, right = {}, {}
    for what, chain in (("matmul", _matmul(sizes["side"])), ("hbm", _memory(sizes["memory"]))):
        figures[what], right[what] = _each(own, chain)
    there, back, arrived = zip(*(_host(device, sizes["host"]) for device in own), strict=True)
    for what, found in (("host-to-device", there), ("device-to-host", back)):
        figures[what], right[what] = list(found), list(arrived)
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


def _timed(work, *arguments) -> tuple:
    """Return the seconds that work takes, and what it ends with."""
    import jax

    started = time.perf_counter()
    end = jax.block_until_ready(work(*arguments))
    return time.perf_counter() - started, end


def _step_seconds(run, arguments: tuple, steps: tuple) -> tuple:
    """Return what one step of a chain takes, and what the long chain ends with."""
    best = []
    for count in steps:
        seconds = []
        for _ in range(_REPEATS):
            taken, end = _timed(run, count, *arguments)
            seconds.append(taken)
        best.append(min(seconds))
    short, long = best
    return max(long - short, long / 10) / (steps[1] - steps[0]), end


def _each(devices: list, chain: _Chain) -> tuple:
    """Return the figure of each device, once a pass, and whether it computed.

    All run chains of the same length, and so have to end with the same bits in every pass: not with
    those of the short chain, of which some are known.
    """
    import jax

    made = [jax.device_put(chain.make(), device) for device in devices]
    begun = jax.block_until_ready([chain.run(_SHORT, *arguments) for arguments in made])
    known = [_as_known(end, chain, _SHORT) for end in begun]
    short = [_hash(end) for end in begun]
    del begun
    long = _LONG
    while _timed(chain.run, long, *made[0])[0] < _CHAIN_SECONDS[_stands_in()]:
        long *= 2
    figures, ends = [[] for _ in devices], [[] for _ in devices]
    for _ in range(_PASSES):
        for at, arguments in enumerate(made):
            seconds, end = _step_seconds(chain.run, arguments, (_SHORT, long))
            figures[at].append(chain.amount / seconds)
            ends[at].append(_hash(end))
    usual = statistics.mode(end for own in ends for end in own)
    return figures, [
        known[at] and {*ends[at]} == {usual} and usual != short[at] for at in range(len(devices))
    ]


def _as_known(end, chain: _Chain, steps: int) -> bool:
    """Return True if some rows of a chain's end are what so many steps lead to."""
    import numpy

    found, right = numpy.asarray(_rows(end)).astype(float), chain.rows_after(steps)
    return bool(numpy.linalg.norm(found - right) <= chain.tolerance * numpy.linalg.norm(right))


def _rows(value):
    """Return four rows of a matrix."""
    return value[:: len(value) // 4]


def _hash(value) -> int:
    """Return a number of 32 bits that stands for all words of a matrix and their places."""
    return int(_hashing()(value))


@functools.cache
def _hashing():
    import jax
    import jax.numpy as jnp

    @jax.jit
    def hashed(value):
        words = jax.lax.bitcast_convert_type(value, f"uint{8 * value.dtype.itemsize}")
        row, column = (jax.lax.broadcasted_iota(jnp.uint32, value.shape, axis) for axis in (0, 1))
        place = row * jnp.uint32(_MIX) ^ column * jnp.uint32(_MIX >> 8) | 1
        return (words.astype(jnp.uint32) * place).sum(dtype=jnp.uint32)

    return hashed


def _matmul(side: int) -> _Chain:
    """Return the chain x @ w @ w.

    Random numbers: zeros draw no power. w keeps the size of x.
    """
    import jax
    import jax.numpy as jnp
    import numpy

    @jax.jit
    def run(steps, x, w):
        def step(_, value):
            once = product(value, w).astype(jnp.bfloat16)  # noqa: F821  jax_program.py
            return product(once, w).astype(jnp.bfloat16)  # noqa: F821

        return jax.lax.fori_loop(0, steps, step, x)

    @functools.cache
    def make() -> tuple:
        random = numpy.random.default_rng(0)
        x, w = random.standard_normal((2, side, side), dtype=numpy.float32)
        return x.astype(jnp.bfloat16), (w / side**0.5).astype(jnp.bfloat16)

    @functools.cache
    def rows_after(steps: int):
        x, w = make()
        rows, w = _rows(x), w.astype(numpy.float32)
        for _ in range(2 * steps):
            rows = (rows.astype(numpy.float32) @ w).astype(jnp.bfloat16)
        return rows.astype(float)

    # A device adds up in another order, which bfloat16 rounds to another number now and then.
    return _Chain(run, make, 2 * 2 * side**3 / 1e12, rows_after, tolerance=0.01)


def _memory(size: int) -> _Chain:
    """Return the chain x + 1, which reads and writes each word."""
    import jax
    import numpy

    @jax.jit
    def run(steps, x, one):
        return jax.lax.fori_loop(0, steps, lambda _, value: value + one, x)

    @functools.cache
    def make() -> tuple:
        return numpy.arange(size // 4, dtype=numpy.int32).reshape(-1, _COLUMNS), numpy.int32(1)

    def rows_after(steps: int):
        return _rows(make()[0]).astype(float) + steps

    return _Chain(run, make, 2 * size / 1e9, rows_after, tolerance=0)


def _host(device, size: int) -> tuple:
    """Return the bandwidth to a device and back, a figure a pass each, and whether all arrived."""
    import jax
    import numpy

    there, back, words, right = [], [], numpy.arange(size // 4, dtype=numpy.int32), True
    for number in range(_PASSES):
        seconds, words = [[], []], words + number
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


def _across(devices: list, size: int, step, last=lambda value: value) -> tuple:
    """Return a chain of `step` over all devices, ended by `last`, and the array it begins with.

    The array is a sharding and a shape; `_begin` makes it.
    """
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh, split = Mesh(numpy.array(devices), ("device",)), PartitionSpec("device")
    shape = (len(devices) * size // (4 * _COLUMNS), _COLUMNS)

    def chain(steps, x):
        return last(jax.lax.fori_loop(0, steps, lambda _, value: step(value), x))

    whole = PartitionSpec()
    mapped = jax.shard_map(
        chain, mesh=mesh, in_specs=(whole, split), out_specs=split, check_vma=False
    )
    array = jax.ShapeDtypeStruct(shape, numpy.float32, sharding=NamedSharding(mesh, split))
    return jax.jit(mapped), array


def _begin(array, count: int):
    """Return the array that a chain over so many devices begins with."""
    import jax
    import numpy

    rows = array.shape[0] // count

    def part(index: tuple) -> numpy.ndarray:
        numbers = _numbers(count, (index[0].start or 0) // rows, rows)
        return numpy.broadcast_to(numbers, (rows, _COLUMNS))

    return jax.make_array_from_callback(array.shape, array.sharding, part)


def _numbers(count: int, device: int, rows: int):
    """Return the number in each row of a device: each device has the largest of some rows."""
    import numpy

    return ((numpy.arange(rows, dtype=numpy.int32)[:, None] + device) % count).astype("float32")


def _shards(array, count: int) -> dict:
    """Return what each device of this worker holds of an array, by the device's index."""
    rows = array.shape[0] // count
    return {(each.index[0].start or 0) // rows: each.data for each in array.addressable_shards}


def _reducing(devices: list, size: int) -> tuple:
    """Return the chain of all-reduces, and the array it begins with.

    Their largest numbers, because they stay as they are; a sum would have to be divided, in a pass
    through HBM of its own.
    """
    import jax

    return _across(devices, size, lambda x: jax.lax.pmax(x, "device"))


def _all_reduce(devices: list, size: int) -> tuple:
    import jax

    count = len(devices)
    run, array = _reducing(devices, size)
    begin = _begin(array, count)
    jax.block_until_ready(run(_SHORT, begin))
    seconds, end = _step_seconds(run, (begin,), (_SHORT, _LONG))
    right = all(bool((held == count - 1).all()) for held in _shards(end, count).values())
    return size, 2 * (count - 1) / count * size / seconds / 1e9, right


def _exchanging(devices: list, pairs: list, size: int) -> tuple:
    """Return the chain of exchanges between pairs, two a step, and the array it begins with.

    One more at the end leaves each device with what its partner had.
    """
    import jax

    both = [*pairs, *((other, one) for one, other in pairs)]

    def swap(value):
        return jax.lax.ppermute(value, "device", both)

    return _across(devices, size, lambda value: swap(swap(value)), swap)


def _links(devices: list, pairs: list, size: int) -> list:
    """Let pairs of neighbours exchange what they hold, all at once, each over a link of its own.

    A pair waits for nobody but itself, so that each end tells what its link takes.
    """
    count = len(devices)
    run, array = _exchanging(devices, pairs, size)
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
    found = []
    for one, other in pairs:
        own = [end for end in (one, other) if end in right]
        if own:
            short, long = (
                min(max(seconds[end] for end in own) for seconds in runs[steps])
                for steps in (_SHORT, _LONG)
            )
            seconds = max(long - short, long / 10, 1e-9) / (_LONG - _SHORT)
            found.append((one, other, 2 * size / seconds / 1e9, all(right[end] for end in own)))
    return found


def _end_seconds(run, begin, count: int, steps: int) -> dict:
    """Return after how long each device of this worker had done its part of a chain."""
    import jax

    started, ends = time.perf_counter(), {}

    def wait(device: int, held) -> None:
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


def _matchings(devices: list) -> list:
    """Return pairs of devices with a link between their chips, in groups that share no device.

    Chips are neighbours where one coordinate differs by 1: those of one axis with the even one
    first, then with the odd one. The links that close a torus are left out: whether they are there
    depends on the slice.
    """
    places = [getattr(device, "coords", None) for device in devices]
    if None in places:  # CPU devices: a row of them
        places = [(index,) for index in range(len(devices))]
    first = {tuple(place): len(places) - 1 - at for at, place in enumerate(reversed(places))}
    groups = {}
    for place, index in sorted(first.items(), key=lambda each: each[1]):
        for axis in range(len(place)):
            near = first.get((*place[:axis], place[axis] + 1, *place[axis + 1 :]))
            if near is not None:
                groups.setdefault((axis, place[axis] % 2), []).append((index, near))
    return [groups[key] for key in sorted(groups)]


def soak(seconds: float) -> dict:
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
    rates, began, seed, metrics = [], time.perf_counter(), 0, {}
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
        for words, shape in operands(INNER, seed)  # noqa: F821  smoke_program.py
    )
    return digest((left @ right).astype(numpy.float32))  # noqa: F821  smoke_program.py


def _patterns(words: int) -> tuple:
    """Return what makes the pattern of a buffer, and what counts the words that differ from it.

    There are three kinds of patterns, in turn; each has the buffer's number in every word.
    """
    import jax
    import jax.numpy as jnp

    def pattern(kind, number):
        index = jnp.arange(words, dtype=jnp.uint32)
        mixed = index * jnp.uint32(_MIX) ^ (index >> 7)
        alike = [jnp.uint32(word) for word in _PATTERNS]
        return jnp.select([kind == 0, kind == 1], alike, mixed) ^ number

    return jax.jit(pattern), jax.jit(lambda buffer, *which: (buffer != pattern(*which)).sum())


class _Soaked:
    """One device under load: its memory is filled with patterns, its products are looked at."""

    def __init__(self, device, chain: _Chain, patterns: tuple) -> None:
        import jax

        self.device, self._chain = device, chain
        self.rate, self.wrong, self.flipped, self._found = 0.0, 0, 0, ()
        self._write, self._differing = patterns
        self._arguments = jax.device_put(chain.make(), device)
        begun = jax.block_until_ready(chain.run(_SHORT, *self._arguments))
        taken, _ = _step_seconds(chain.run, self._arguments, (_SHORT, _LONG))
        self._steps = max(_LONG, int(_CHAIN_SECONDS[_stands_in()] / taken))
        # Nothing is right for a device whose short chain ends with other numbers.
        known = _as_known(begun, chain, _SHORT)
        self._end = _hash(chain.run(self._steps, *self._arguments)) if known else None
        stats = memory_stats(device)  # noqa: F821  jax_program.py
        free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
        # Room for the product of each window, and for what a comparison needs.
        buffer = _BUFFER[_stands_in()]
        room = _FILLED * free - 8 * buffer if free else _FILLED_UNKNOWN
        self._buffers = [None] * max(1, int(room // buffer))
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
            for words, shape in operands(INNER, seed)  # noqa: F821  smoke_program.py
        ]
        steps, began = 0, time.perf_counter()
        while not steps or time.perf_counter() - began < seconds:
            end = jax.block_until_ready(self._chain.run(self._steps, *self._arguments))
            steps += self._steps
        self.rate = steps * self._chain.amount / (time.perf_counter() - began)
        found = product(*jax.device_put(factors, self.device))  # noqa: F821  jax_program.py
        self._found = digest(numpy.asarray(found)), _hash(end)  # noqa: F821  smoke_program.py

    def read(self, seed: int) -> None:
        """Count the words of memory that are no longer what this seed's window wrote."""
        import jax

        with jax.default_device(self.device):
            for number, buffer in enumerate(self._buffers):
                if buffer is not None:
                    self.flipped += int(self._differing(buffer, *_pattern_of(seed, number)))

    def judge(self, exact: str) -> None:
        self.wrong += self._found != (exact, self._end)


def _pattern_of(seed: int, number: int) -> tuple:
    """Return the kind of a window's patterns, and a buffer's number, for a device."""
    import jax.numpy as jnp

    return jnp.int32(seed % _KINDS), jnp.uint32(number)


def _metrics() -> dict:
    """Return what libtpu's own monitoring says, where this libtpu has it (0.0.42 and later)."""
    found = {}
    try:
        from libtpu.sdk import tpumonitoring

        for name in _METRICS:
            found[name] = [str(each) for each in tpumonitoring.get_metric(name).data()][:4096]
    except Exception:
        pass  # what there is
    return found
