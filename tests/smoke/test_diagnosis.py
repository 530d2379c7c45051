"""A training loop's steps are timed as they are and with what is there already, and advised on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.local_worker import LocalWorker

from tpukit.clock import SystemClock
from tpukit.errors import TpukitError
from tpukit.smoke.diagnosis import Diagnosis, StepTimes, read, shell_lines
from tpukit.ssh.programs import program_text, shell_line

#: A loader that takes 3 s a batch, of two shapes, and steps of 1 s: by a clock of its own.
TRAIN = """
import time
now = [0.0]
time.perf_counter = lambda: now[0]
from tpukit_steps import steps
class Batch:
    def __init__(self, length): self.shape = (8, length)
class Loader:
    def __iter__(self):
        for number in range(7):
            now[0] += 3.0
            yield {"words": Batch(number % 2)}
seen = []
for batch in steps(Loader()):
    now[0] += 1.0
    seen.append(batch)
print("saved", len(seen))
"""
FOUND = StepTimes(
    steps=20,
    real_seconds=1.0,
    cached_seconds=0.95,
    input_seconds=0.1,
    waited_seconds=0.0,
    compilations=0,
    shapes=1,
    busy=0.8,
    processors=96,
)
HOST_BOUND = {"cached_seconds": 0.5, "waited_seconds": 0.5}


def trained(home: Path, steps: int = 10, train: str = TRAIN) -> subprocess.CompletedProcess[str]:
    """Run a program as `tpukit diagnose` does."""
    (home / "train.py").write_text(train)
    worker = LocalWorker(home)
    line = shell_lines("run-1", steps) + f"exec {sys.executable} train.py\n"
    return subprocess.run(
        ["/bin/sh", "-c", shell_line(line)],
        cwd=home,
        env=worker.environment,
        capture_output=True,
        text=True,
    )


def test_real_and_cached_steps_and_the_loader_are_timed_and_nothing_is_saved(
    tmp_path: Path,
) -> None:
    """The loader ends after seven batches, and begins anew."""
    done = trained(tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    worker = LocalWorker(tmp_path).remote()
    (found,) = read([worker], "run-1", SystemClock())
    times = found.value
    assert times
    assert (times.real_seconds, times.cached_seconds) == (4.0, 1.0)
    assert (times.input_seconds, times.waited_seconds) == (3.0, 3.0)
    assert (times.steps, times.shapes, times.compilations) == (10, 2, 0)
    assert times.host_share == 0.75
    assert read([worker], "run-1", SystemClock())[0].value is None, "it is read once"


#: The machine is twice as slow in every other second minute; steps take a minute, a batch nothing.
BUSY = """
import time
now = [0.0]
time.perf_counter = lambda: now[0]
from tpukit_steps import steps
class Loader:
    def __iter__(self):
        return iter(range(1000))
for batch in steps(Loader()):
    now[0] += 120.0 if now[0] // 600 % 2 else 60.0
"""


def test_a_program_whose_batches_cost_nothing_is_not_host_bound_on_a_busy_machine(
    tmp_path: Path,
) -> None:
    assert trained(tmp_path, steps=20, train=BUSY).returncode == 0
    (found,) = read([LocalWorker(tmp_path).remote()], "run-1", SystemClock())
    assert found.value
    assert found.value.host_share == 0
    assert Diagnosis(0, found.value).advice == ()


def test_both_kinds_of_steps_are_timed_in_turns(tmp_path: Path) -> None:
    """The batches that a training of 8 steps sees: three that are not timed, then in four turns."""
    order = "import tpukit_steps\nfor batch in tpukit_steps.steps(iter(range(99))): print(batch)"
    done = trained(tmp_path, steps=8, train=order)
    seen = [int(line) for line in done.stdout.split()]
    assert seen == [0, 1, 2, 3, 4, 4, 4, 5, 6, 6, 6, 7, 8, 8, 8, 9, 10, 10, 10]


def test_elsewhere_the_module_is_the_loader_itself(tmp_path: Path) -> None:
    (tmp_path / "tpukit_steps.py").write_text(program_text("smoke/steps_program.py"))
    done = subprocess.run(
        [sys.executable, "-c", TRAIN], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "saved 7\n"


def test_a_program_that_asks_for_no_steps_or_has_no_batch_tells_nothing(tmp_path: Path) -> None:
    worker = LocalWorker(tmp_path).remote()
    assert trained(tmp_path, train="print(1)").stdout == "1\n"
    assert read([worker], "run-1", SystemClock())[0].value is None
    empty = trained(tmp_path, train="from tpukit_steps import steps\nlist(steps([]))")
    assert "the loader has no batches" in empty.stderr


def test_what_makes_no_sense_is_said(tmp_path: Path) -> None:
    (tmp_path / ".tpukit/diagnose").mkdir(parents=True)
    (tmp_path / ".tpukit/diagnose/run-1.json").write_text(json.dumps({"steps": -1}))
    (outcome,) = read([LocalWorker(tmp_path).remote()], "run-1", SystemClock())
    assert isinstance(outcome.error, TpukitError)
    assert "are invalid" in outcome.error.summary()


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({}, []),
        ({"cached_seconds": 0.85, "waited_seconds": 0.15}, []),
        ({"cached_seconds": 0.5, "waited_seconds": 0.5}, ["presize", "cache"]),
        # Cached steps were faster, but nothing waited for a batch: another program ran meanwhile.
        ({"cached_seconds": 0.5, "waited_seconds": 0.0}, []),
        # The loader works beside the devices: cached steps take as long.
        ({"cached_seconds": 0.99, "waited_seconds": 0.6}, []),
        # The loader has prepared what the real steps took, and takes longer than they do.
        ({"cached_seconds": 0.99, "input_seconds": 2.0}, ["presize", "cache"]),
        ({**HOST_BOUND, "busy": 0.1}, ["presize", "cache", "workers"]),
        ({**HOST_BOUND, "busy": 0.99}, ["presize", "cache", "vCPUs"]),
        ({"duty_cycle": 40.0}, ["batch"]),
        ({"duty_cycle": 95.0}, []),
        ({"compilations": 4, "shapes": 4, "duty_cycle": 10.0}, ["fixed shapes"]),
        ({"real_seconds": 0.0, "input_seconds": 0.0}, []),
        (
            {**HOST_BOUND, "busy": 0.1, "duty_cycle": 5.0},
            ["presize", "cache", "workers", "batch"],
        ),
    ],
)
def test_the_advice_is_what_helps_most_first(changes: dict[str, float], advice: list[str]) -> None:
    found = Diagnosis(0, FOUND.model_copy(update=changes))
    assert [text.partition(":")[0] for text in found.advice] == advice
