"""Bad slices are found, each by the device or worker that is bad, and healthy ones pass.

Devices lie as the emulator lets them, programs where their text is another one: everything else is
real. `scripts/test -m long -s tests/smoke/test_mutants.py` prints the whole table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import pytest
from support.local_worker import LocalConnection, LocalWorker, seconds

from tpukit.accelerators import AcceleratorType
from tpukit.provision.recipes import Recipe
from tpukit.smoke.runner import Load, smoke
from tpukit.smoke.smoke_report import SmokeReport
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import quote

STAND_INS = files("tpukit.emulator.workers.engines").joinpath("standins")
JAX = Recipe.named("jax")

#: What lies, the level that finds it, and what its report says: {} is any figure.
DEVICES = [
    *((f"wrong-device={n}", 1, f"device {n} multiplied wrong") for n in range(8)),
    *((f"slow-device={n}", 2, f"worker 0 device {n}: matmul") for n in range(4)),
    ("missing-device=0", 1, "7 of 8 devices"),
    ("wrong-device=2 slow-device=1", 2, "device 2 multiplied wrong"),
]
#: A text of the program, the one in its place, and what the report says.
DIGESTS = "multiply(device)] for device in own"
ROWS = "numpy.diag("
RING = "(index + 1) % count) for index in range(count)"
PROGRAMS = [
    ("jax.local_device_count()", "jax.local_device_count() + 1", "9 of 8 devices"),
    ("jax.local_device_count()", "4", "4 of 8 devices"),
    ("jax.device_count()", "16", "16 of 8 devices in the whole slice"),
    ("jax.process_count()", "2", "2 of 1 workers joined"),
    ("devices.index(device) for", "0 for", "two of its devices are one"),
    (DIGESTS, f"{DIGESTS}[:7]", "7 of 8 devices multiplied"),
    (ROWS, f"(numpy.arange(len(devices)) != 5) * {ROWS}", "the sum lacks device 5"),
    (ROWS, f"(numpy.arange(len(devices)) > 3) * {ROWS}", "the sum lacks devices 0, 1, 2, 3"),
    ('psum(row, "device")[0]', 'psum(row, "device")[0] * 2', "the sum over all devices is 72.0"),
    ("(index + 1) % count", "(index + 2) % count", "got another number"),
    (RING, f"{RING[:-1]} - 1)", "device 0 got another number"),
    ("element_type=jnp.float32", "element_type=jnp.bfloat16", "multiplied wrong"),
    ("matrix.astype(jnp.bfloat16)", "matrix.astype(jnp.float8_e4m3fn)", "multiplied wrong"),
    ("device_put((left, right)", "device_put((left[::-1], right)", "multiplied wrong"),
    ('"platform": devices[0].platform', '"platform": "tpu"', "it computed on platform tpu"),
]
#: The same of level 2: fast, and of nothing.
ONCE, TWICE = "product(value, w).astype(jnp.bfloat16)", "product(once, w).astype(jnp.bfloat16)"
WRONG = "its values are wrong"
SWAPS = "lambda value: swap(swap(value)), swap)"
CHAINS = [
    (TWICE, f"{TWICE} * 0", f"device 3: matmul {{}}{WRONG}"),
    (TWICE, "once", f"matmul {{}}{WRONG}"),
    (f"once = {ONCE}", "once = value.astype(jnp.float8_e4m3fn)", f"matmul {{}}{WRONG}"),
    (ONCE, ONCE.replace("w)", "w.T)"), f"matmul {{}}{WRONG}"),
    ("fori_loop(0, steps, step, x)", "fori_loop(0, 2, step, x)", f"{WRONG}|no answer|no sense"),
    (
        "device_put(chain.make(), device)",
        "device_put(chain.make(), devices[-1])",
        f"hbm {{}}{WRONG}",
    ),
    ("value + one", "value", f"device 2: hbm {{}}{WRONG}"),
    ("value + one", "value.at[::2].add(one)", f"hbm {{}}{WRONG}"),
    ("jax.device_put(words, device)", "jax.device_put(words[:9], device)", f"to-host {{}}{WRONG}"),
    ('pmax(value, "device")', 'pmin(value, "device")', f"all devices: all-reduce {{}}{WRONG}"),
    ('jax.lax.pmax(value, "device")', "value * 1.0", f"all devices: all-reduce {{}}{WRONG}"),
    ('"device", both)', '"device", pairs)', "device 0 - worker 0 device 1: link"),
    ("jax.lax.ppermute(value", "(lambda value, *others: value)(value", "received values are wrong"),
    (SWAPS, SWAPS.replace(", swap)", ")"), "the received values are wrong"),
    (
        "figures[what], right[what] = _each(own,",
        "figures[what], right[what] = _each(own[:3],",
        "a part of level 2",
    ),
    ('for size in sizes["all-reduce"]', "for size in ()", "a part of level 2"),
]
#: And of level 3, whose only window is followed by one more look at the memory.
BUFFER = "self._write(*_pattern_of(seed, number))"
SOAKED = [
    (TWICE, f"{TWICE} * 0", "device 3: soak {}1 windows with wrong bits"),
    (BUFFER, f"self._buffers[0] if number else {BUFFER}", "words of memory that changed"),
    (BUFFER, f"{BUFFER} ^ (number == 6)", "262144 words of memory that changed"),
    (BUFFER, BUFFER.replace("seed", "seed + 1"), "device 3: soak {}words of memory that changed"),
    (
        "device_put(chain.make(), device)",
        "device_put(chain.make(), jax.devices()[0])",
        "wrong bits",
    ),
    ("device_put(factors, self.device)", "device_put(factors[::-1], self.device)", "wrong bits"),
    ("self._results = bits, _hash(end), used", "self._results = bits, 0, used", "wrong bits"),
    ("[device.wrong for device in devices]", "[]", "a part of level 3"),
]
HONEST = ("", "", "")
#: How devices and program lie, the level that finds it, and what its report says.
MUTANTS = [
    *(((lies, "", ""), level, words) for lies, level, words in DEVICES),
    *((("", before, after), 1, words) for before, after, words in PROGRAMS),
    *((("", before, after), 2, words) for before, after, words in CHAINS),
    *((("", before, after), 3, words) for before, after, words in SOAKED),
]


class LyingConnection(LocalConnection):
    """Hands on what a worker is sent, changed, to one whose devices lie."""

    def run(self, command, *, stdin=b"", **options):
        lies, before, after = self.worker.lies
        if before and before.encode() in stdin:
            stdin = stdin.replace(before.encode(), after.encode())
            self.worker.changed = True
        if lies:
            command = f"exec lying-devices {quote([lies, command])}"
        return super().run(command, stdin=stdin, **options)


class LyingWorker(LocalWorker):
    def __init__(self, home: Path, devices: int, path: Path, lies=HONEST) -> None:
        super().__init__(home, environment={"TPUKIT_EMULATED_DEVICES": str(devices)})
        self.environment["PATH"] = f"{path}:{self.environment['PATH']}"
        self.lies, self.changed = lies, False

    def remote(self) -> RemoteWorker:
        return RemoteWorker(self.index, lambda: LyingConnection(self))


@pytest.fixture(scope="module")
def lying_home(jax_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of its own: its environment is told to lie, and that of other tests is not."""
    home = tmp_path_factory.mktemp("lying")
    (home / ".tpukit/venvs").mkdir(parents=True)
    made = jax_home.resolve() / "provisioned/.tpukit/venvs/jax"
    (home / "bin").mkdir()
    for name in ("lying-devices", "lying-devices-hook"):
        program = home / "bin" / name
        program.write_text(STAND_INS.joinpath(name).read_text())
        program.chmod(0o755)
    (home / ".tpukit/venvs/jax").symlink_to(made)
    return home


def smoke_test(home: Path, level: int, lies=HONEST) -> tuple[LyingWorker, SmokeReport]:
    """Level 1 on 8 devices, the others on 4: what they look at is the same, in half the time."""
    name, devices = ("v3-8", 8) if level == 1 else ("v6e-4", 4)
    worker = LyingWorker(home, devices, home / "bin", lies)
    report = smoke(
        [worker.remote()],
        AcceleratorType.parse(name),
        JAX,
        deadline=seconds(300),
        load=Load(level, soak_seconds=0.01),
    )
    return worker, report


def said(report: SmokeReport) -> str:
    return "; ".join(
        [
            *(worker.error for worker in report.workers if worker.error),
            *map(str, report.failed_measurements),
        ]
    )


#: Of the table, one for each kind of lie: what CI has the time for.
FEW = (1, 9, 12, 18, 20, 25, 34, 40, 45)


@pytest.mark.full_size
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("chosen", "healthy"),
    [
        (FEW, [3]),
        pytest.param(range(53), [1] * 10 + [2] * 6 + [3] * 4, marks=pytest.mark.long),
    ],
    ids=["few", "all"],
)
def test_every_mutant_is_found_and_named_and_healthy_slices_pass(
    lying_home: Path, chosen: Sequence[int], healthy: list[int]
) -> None:
    assert len(MUTANTS) == 53
    mutants = [MUTANTS[number] for number in chosen]
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(smoke_test, lying_home, level, lies) for lies, level, _ in mutants]
        passing = [pool.submit(smoke_test, lying_home, level) for level in healthy]
    table = []
    for (lies, level, words), outcome in zip(mutants, found, strict=True):
        worker, report = outcome.result()
        shown = lies[0] or f"{lies[1]!r} -> {lies[2]!r}"
        assert lies[0] or worker.changed, f"the program has no {lies[1]!r}"
        named = re.search(words.replace("{}", "[^;]*"), said(report)) and not report.ok
        table.append((named, level, shown, said(report)))
    for level, outcome in zip(healthy, passing, strict=True):
        report = outcome.result()[1]
        table.append((report.ok, level, "healthy", said(report)))
    lines = [
        f"{'ok' if held else 'NO'}  {level}  {what:70.70}  {how:.90}"
        for held, level, what, how in table
    ]
    sys.stdout.write("\n".join(["", *lines, ""]))
    assert not [line for line in lines if line.startswith("NO")]
