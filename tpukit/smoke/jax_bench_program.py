"""The smoke test's measurements in JAX, levels 2 and 3; a worker gets jax_program.py before it.

Each figure is of a chain in which every step needs the one before it, in one compiled loop: what
the loop takes with `_LONG` steps less what it takes with `_SHORT`, best of three, leaves out what
it costs to start it. Formulas: AI-Hypercomputer/accelerator-microbenchmarks (2026-08).
"""

import threading
import time

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
_PATTERNS = (0x55555555, 0xAAAAAAAA)
_METRICS = ("tpu_throttle_score", "ici_link_health")


def bench() -> dict:
    """Return the figures of this worker's devices, and of the slice as this worker sees it.

    `devices`: for each what, for each device, a figure a pass; TFLOP/s for `matmul`, else GB/s.
    `all_reduce`: (bytes a device, GB/s). `links`, those with an end on this worker: (from, to, GB/s
    one way, with as much the other way, whether the values were right), devices by their index.
    """
    import jax

    sizes, own = SIZES[_stands_in()], jax.local_devices()
    figures = {
        "matmul": _each(own, _matmul(sizes["side"])),
        "hbm": _each(own, _memory(sizes["memory"])),
    }
    there, back = zip(*(_host(device, sizes["host"]) for device in own), strict=True)
    figures["host-to-device"], figures["device-to-host"] = list(there), list(back)
    return {
        "devices": figures,
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


def _seconds(work, *arguments) -> float:
    import jax

    started = time.perf_counter()
    jax.block_until_ready(work(*arguments))
    return time.perf_counter() - started


def _step_seconds(chain, arguments: tuple, steps: tuple) -> float:
    """Return what one step of a chain takes."""
    short, long = (
        min(_seconds(chain, count, *arguments) for _ in range(_REPEATS)) for count in steps
    )
    return max(long - short, long / 10) / (steps[1] - steps[0])


def _each(devices: list, work: tuple) -> list:
    """Return the figure of each device, once a pass; all run chains of the same length."""
    import jax

    chain, make, amount = work
    made = [jax.device_put(make(), device) for device in devices]
    jax.block_until_ready([chain(_SHORT, *arguments) for arguments in made])
    long = _LONG
    while _seconds(chain, long, *made[0]) < _CHAIN_SECONDS[_stands_in()]:
        long *= 2
    figures = [[] for _ in devices]
    for _ in range(_PASSES):
        for figure, arguments in zip(figures, made, strict=True):
            figure.append(amount / _step_seconds(chain, arguments, (_SHORT, long)))
    return figures


def _matmul(side: int) -> tuple:
    """Return the chain x @ w, what makes x and w, and 10**12 operations of a step.

    Random numbers: zeros draw no power. w keeps the size of x.
    """
    import jax
    import jax.numpy as jnp
    import numpy

    @jax.jit
    def chain(steps, x, w):
        def step(_, value):
            product = jnp.matmul(value, w, preferred_element_type=jnp.float32)
            return product.astype(jnp.bfloat16)

        return jax.lax.fori_loop(0, steps, step, x)

    def make() -> tuple:
        random = numpy.random.default_rng(0)
        x, w = random.standard_normal((2, side, side), dtype=numpy.float32)
        return x.astype(jnp.bfloat16), (w / side**0.5).astype(jnp.bfloat16)

    return chain, make, 2 * side**3 / 1e12


def _memory(size: int) -> tuple:
    """Return the chain x * c, what makes x and c, and 10**9 bytes that a step reads and writes."""
    import jax
    import jax.numpy as jnp
    import numpy

    @jax.jit
    def chain(steps, x, factor):
        return jax.lax.fori_loop(0, steps, lambda _, value: value * factor, x)

    def make() -> tuple:
        return numpy.ones(size // 2, jnp.bfloat16), numpy.ones((), jnp.bfloat16)

    return chain, make, 2 * size / 1e9


def _host(device, size: int) -> tuple:
    """Return the bandwidth to a device and back, a figure a pass each."""
    import jax
    import numpy

    there, back, words = [], [], numpy.arange(size // 4, dtype=numpy.int32)
    for _ in range(_PASSES):
        seconds = [[], []]
        for _ in range(_REPEATS):
            started = time.perf_counter()
            moved = jax.block_until_ready(jax.device_put(words, device))
            arrived = time.perf_counter()
            jax.device_get(moved)
            seconds[0].append(arrived - started)
            seconds[1].append(time.perf_counter() - arrived)
        there.append(size / max(min(seconds[0]), 1e-6) / 1e9)
        back.append(size / max(min(seconds[1]), 1e-6) / 1e9)
    return there, back


def _across(devices: list, size: int, step) -> tuple:
    """Return a chain of `step` over all devices, and what it begins with: each device's index."""
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh, split = Mesh(numpy.array(devices), ("device",)), PartitionSpec("device")
    shape = (len(devices), size // 4)

    def rows(index: tuple) -> numpy.ndarray:
        numbers = numpy.arange(len(devices), dtype=numpy.float32)[index[0]]
        return numpy.broadcast_to(numbers[:, None], (len(numbers), shape[1]))

    def chain(steps, x):
        return jax.lax.fori_loop(0, steps, lambda _, value: step(value), x)

    whole = PartitionSpec()
    mapped = jax.shard_map(
        chain, mesh=mesh, in_specs=(whole, split), out_specs=split, check_vma=False
    )
    begin = jax.make_array_from_callback(shape, NamedSharding(mesh, split), rows)
    return jax.jit(mapped), begin


def _all_reduce(devices: list, size: int) -> tuple:
    import jax

    count = len(devices)
    chain, begin = _across(devices, size, lambda x: jax.lax.psum(x, "device") / count)
    jax.block_until_ready(chain(_SHORT, begin))
    seconds = _step_seconds(chain, (begin,), (_SHORT, _LONG))
    return size, 2 * (count - 1) / count * size / seconds / 1e9


def _links(devices: list, pairs: list, size: int) -> list:
    """Let pairs of neighbours exchange what they hold, all at once, each over a link of its own.

    An odd number of exchanges shows whether it arrived. A pair waits for nobody but itself, so that
    each end tells what its link takes.
    """
    import jax

    both = [*pairs, *((other, one) for one, other in pairs)]
    chain, begin = _across(devices, size, lambda x: jax.lax.ppermute(x, "device", both))
    partner, right = dict(both), {}
    for shard in jax.block_until_ready(chain(1, begin)).addressable_shards:
        index = shard.index[0].start
        right[index] = index not in partner or bool((shard.data == partner[index]).all())
    _end_seconds(chain, begin, _LONG)
    runs = {
        count: [_end_seconds(chain, begin, count) for _ in range(_REPEATS)]
        for count in (_SHORT, _LONG)
    }
    found = []
    for one, other in pairs:
        own = [end for end in (one, other) if end in right]
        if own:
            short, long = (
                min(max(run[e] for e in own) for run in runs[n]) for n in (_SHORT, _LONG)
            )
            seconds = max(long - short, long / 10, 1e-9) / (_LONG - _SHORT)
            found.append((one, other, size / seconds / 1e9, all(right[end] for end in own)))
    return found


def _end_seconds(chain, begin, count: int) -> dict:
    """Return after how long each device of this worker had done its part of a chain."""
    import jax

    started, ends = time.perf_counter(), {}

    def wait(shard) -> None:
        jax.block_until_ready(shard.data)
        ends[shard.index[0].start] = time.perf_counter() - started

    threads = [
        threading.Thread(target=wait, args=(shard,))
        for shard in chain(count, begin).addressable_shards
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
    its product was wrong, `flipped`: how many words of its memory had changed. `metrics`: by name
    all that libtpu has said after any window, such as `tray1.chip3.ici0.int: 0`.
    """
    import jax

    window, chain, patterns = (
        min(10.0, seconds / 6),
        _matmul(SIZES[_stands_in()]["side"]),
        _patterns(),
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


def _patterns() -> tuple:
    """Return what makes a buffer's pattern, one of three kinds, and what counts its wrong words."""
    import jax
    import jax.numpy as jnp

    words = _BUFFER[_stands_in()] // 4

    def pattern(kind):
        index = jnp.arange(words, dtype=jnp.uint32)
        mixed = index * jnp.uint32(2654435761) ^ (index >> 7)  # Knuth's multiplicative hash
        return jnp.select([kind == 0, kind == 1], [jnp.uint32(each) for each in _PATTERNS], mixed)

    return jax.jit(pattern), jax.jit(lambda buffer, kind: (buffer != pattern(kind)).sum())


class _Soaked:
    """One device under load: its memory is filled with patterns, its products are looked at."""

    def __init__(self, device, chain: tuple, patterns: tuple) -> None:
        import jax
        import jax.numpy as jnp

        self.device = device
        self.rate, self.wrong, self.flipped, self._found = 0.0, 0, 0, ""
        self._chain, make, self._amount = chain
        self._write, self._count = patterns
        self._arguments = jax.device_put(make(), device)
        jax.block_until_ready(self._chain(_SHORT, *self._arguments))
        taken = _step_seconds(self._chain, self._arguments, (_SHORT, _LONG))
        self._steps = max(_LONG, int(_CHAIN_SECONDS[_stands_in()] / taken))
        stats = device.memory_stats() or {}
        free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
        # Room for the product of each window, and for what a comparison needs.
        buffer = _BUFFER[_stands_in()]
        room = _FILLED * free - 8 * buffer if free else _FILLED_UNKNOWN
        self._buffers = [None] * max(1, int(room // buffer))
        self.filled = len(self._buffers) * buffer
        with jax.default_device(device):
            int(self._count(self._write(jnp.int32(0)), jnp.int32(0)))

    def run(self, seconds: float, seed: int) -> None:
        import jax
        import jax.numpy as jnp
        import numpy

        with jax.default_device(self.device):
            for at, buffer in enumerate(self._buffers):
                if buffer is not None:
                    self.flipped += int(self._count(buffer, jnp.int32((seed - 1) % 3)))
                self._buffers[at] = None
                self._buffers[at] = self._write(jnp.int32(seed % 3))
            jax.block_until_ready(self._buffers)
        factors = [
            numpy.frombuffer(words, numpy.int16).reshape(shape).astype(jnp.bfloat16)
            for words, shape in operands(INNER, seed)  # noqa: F821  smoke_program.py
        ]
        steps, began = 0, time.perf_counter()
        while not steps or time.perf_counter() - began < seconds:
            jax.block_until_ready(self._chain(self._steps, *self._arguments))
            steps += self._steps
        self.rate = steps * self._amount / (time.perf_counter() - began)
        left, right = jax.device_put(factors, self.device)
        product = jnp.matmul(left, right, preferred_element_type=jnp.float32)
        self._found = digest(numpy.asarray(product))  # noqa: F821  smoke_program.py

    def judge(self, exact: str) -> None:
        self.wrong += self._found != exact


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
