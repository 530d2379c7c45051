"""The smoke test over real processes: real JAX on virtual devices, and faulty interpreters."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.agent_program import put_agent
from support.clocks import HandClock
from support.failing_workers import check_decisive_class
from support.local_worker import HastyClock, LocalConnection, LocalWorker, seconds
from support.smoke_answers import BENCH, line

from tpukit.accelerators import AcceleratorType
from tpukit.clock import SystemClock
from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    DevicesBusy,
    SmokeFailed,
    TransportFailed,
)
from tpukit.provision.recipes import Recipe
from tpukit.smoke.judge import DIGEST, STAND_IN_DIGEST
from tpukit.smoke.runner import Load, ensure_computes, smoke
from tpukit.ssh.programs import program_text
from tpukit.ssh.worker import RemoteWorker
from tpukit.ssh.worker_files import SMOKE_LOCK, venv_python

pytestmark = pytest.mark.process

CLOCK = SystemClock()
JAX = Recipe.named("jax")
V3_8 = AcceleratorType.parse("v3-8")
V4_16 = AcceleratorType.parse("v4-16")


def run(*workers, accelerator=V3_8, timeout=300.0, clock=CLOCK):
    return smoke(workers, accelerator, JAX, deadline=seconds(timeout, clock))


def with_interpreter(home: Path, script: str, index: int = 0, devices: int = 4) -> LocalWorker:
    """A worker whose provisioned interpreter is a shell script."""
    python = home / venv_python("jax")
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return LocalWorker(home, index, {"TPUKIT_EMULATED_DEVICES": str(devices)})


def free_port() -> str:
    """Return a free port below those that systems give to whoever asks for any."""
    while True:
        with socket.socket() as listener, contextlib.suppress(OSError):
            port = random.randrange(20_000, 30_000)
            listener.bind(("127.0.0.1", port))
            return str(port)


def test_eight_virtual_devices_of_a_provisioned_worker_compute(jax_home):
    worker = LocalWorker(jax_home, environment={"TPUKIT_EMULATED_DEVICES": "8"})
    put_agent(jax_home)
    report = run(worker.remote())
    (seen,) = report.workers
    assert (seen.error, seen.log_tail) == ("", ())
    assert report.stand_in == "8 CPU devices standing in for 8 TPU cores"
    assert (seen.devices, seen.global_devices, seen.processes) == (8, 8, 1)
    assert (seen.matmul, seen.global_sum) == (seen.matmul_expected, 36.0)
    assert (seen.platform, seen.emulated, seen.framework) == ("cpu", True, "jax")
    assert len(worker.commands) == 3, "whether it is ready, who holds its devices, one run"


def test_two_workers_detect_each_other_and_add_up_what_all_devices_hold(jax_home):
    port = free_port()

    def member(index: int) -> LocalWorker:
        found_by_jax = {
            "JAX_FORCE_TPU_INIT": "1",
            "JAX_COORDINATOR_PORT": port,
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_ID": str(index),
            "TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.1",
            "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1",
            "MEGASCALE_NUM_SLICES": "1",
            "MEGASCALE_SLICE_ID": "0",
        }
        return LocalWorker(jax_home, index, {"TPUKIT_EMULATED_DEVICES": "4", **found_by_jax})

    members = [member(0).remote(), member(1).remote()]
    report = run(*members, accelerator=V4_16)
    assert [seen.error for seen in report.workers] == ["", ""]
    assert [seen.processes for seen in report.workers] == [2, 2]
    assert [seen.global_sum for seen in report.workers] == [36.0, 36.0]
    assert report.stand_in == "8 CPU devices standing in for 8 TPU chips"


EXACT = """
import numpy
exact = []
for side in (STAND_IN_SIDE, SIDE):
    left, right = (matrix.astype(float) for matrix in operands(side))
    assert numpy.abs(left).max() == numpy.abs(right).max() == 255
    exact.append(digest((left @ right).astype("<f4")))
assert digest(numpy.array([-0.0], "<f4")) == digest(numpy.array([0.0], "<f4"))
print(*exact)
"""


def test_the_bits_asked_for_are_those_of_exact_arithmetic(jax_home):
    """Numbers of 53 bits are exact for these sums."""
    source = program_text("smoke/smoke_program.py").partition("if __name__")[0] + EXACT
    done = subprocess.run(
        [jax_home / venv_python("jax"), "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [STAND_IN_DIGEST, DIGEST]


def test_a_worker_with_seven_devices_is_no_v3_8(jax_home):
    worker = LocalWorker(jax_home, environment={"TPUKIT_EMULATED_DEVICES": "7"})
    report = run(worker.remote())
    assert report.workers[0].error.startswith("7 of 8 devices")
    assert report.stand_in == "7 CPU devices standing in for 8 TPU cores"


def test_a_worker_that_is_not_emulated_has_to_compute_on_a_tpu(jax_home):
    report = run(LocalWorker(jax_home).remote())
    (seen,) = report.workers
    assert seen.error == "the program gave no answer and ended with status 1"
    assert any("initialize backend 'tpu'" in line for line in seen.log_tail)
    assert report.stand_in == ""


HANGING = """
import time
PACKAGES = ()
def prepare(emulated): pass
def compute(workers, side): time.sleep(6000)
"""


def start_hanging(seconds_allowed: str) -> subprocess.Popen[bytes]:
    """Start the program with a computation that never ends."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-", "jax", "1", seconds_allowed, "1", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write((HANGING + program_text("smoke/smoke_program.py")).encode())
    process.stdin.close()
    return process


def test_a_program_whose_time_is_over_ends_itself_and_shows_where_it_was():
    process = start_hanging("0.5")
    assert process.wait(timeout=120) == 1
    assert process.stderr.read().startswith(b"Timeout (0:00:00.5")


def test_a_program_ends_when_nobody_listens_any_more():
    process = start_hanging("600")
    process.stdout.close()
    assert process.wait(timeout=120) == 1


def test_without_a_provisioned_python_it_says_what_comes_first(tmp_path):
    worker = LocalWorker(tmp_path, environment={"TPUKIT_EMULATED_DEVICES": "8"})
    (seen,) = run(worker.remote()).workers
    assert seen.error == (
        "there is no Python at .tpukit/venvs/jax/bin/python: it is not provisioned"
    )
    with pytest.raises(SmokeFailed) as caught:
        ensure(replace(worker.remote(), slice="demo"), accelerator=V3_8)
    assert str(caught.value.fix) == "tpukit provision demo jax"


def test_with_one_worker_not_ready_no_program_is_started(tmp_path):
    ready = with_interpreter(tmp_path / "a", f"touch {tmp_path}/started")

    def refuse():
        raise TransportFailed("no answer from demo worker 1", reason="timed out")

    report = run(ready.remote(), RemoteWorker(1, refuse), accelerator=V4_16)
    assert [seen.error for seen in report.workers] == [
        "waited for worker 1",
        "no answer from demo worker 1 (timed out)",
    ]
    assert not (tmp_path / "started").exists()


def test_when_one_worker_crashes_the_others_are_ended_and_not_blamed(tmp_path):
    clock = HastyClock(10)
    waiting = with_interpreter(tmp_path / "a", "exec sleep 6000")
    crashing = with_interpreter(tmp_path / "b", "echo no numpy >&2; exit 3", index=1)
    began = time.monotonic()
    report = run(
        waiting.remote(), crashing.remote(), accelerator=V4_16, timeout=6000.0, clock=clock
    )
    assert time.monotonic() - began < 120
    assert [seen.error for seen in report.workers] == [
        "waited for worker 1",
        "the program gave no answer and ended with status 3",
    ]
    assert report.workers[1].log_tail == ("no numpy",)


def test_silence_past_the_deadline_is_a_failure(tmp_path):
    clock = HandClock()
    started = tmp_path / "started"
    os.mkfifo(started)
    silent = with_interpreter(tmp_path, f"echo >{started}; exec sleep 6000")

    def pass_time() -> None:
        started.read_text()  # returns once the program has begun
        clock.advance(300.0)

    passing = threading.Thread(target=pass_time)
    passing.start()
    (seen,) = run(silent.remote(), clock=clock).workers
    passing.join()
    assert re.fullmatch(r"no answer within \d+ s", seen.error)


def test_huge_and_hostile_output_fails_in_a_short_and_plain_report(tmp_path):
    noise = "yes 'TPUKIT-SMOKE \033[2J' | head -c 20000000"
    (seen,) = run(with_interpreter(tmp_path, noise, devices=8).remote()).workers
    assert seen.error.startswith("the program gave ")
    assert len(str(seen.document())) < 20_000
    assert "\x1b" not in str(seen.document())


def test_a_worker_that_does_not_say_whether_it_is_ready_is_not_ready(tmp_path):
    class Mute(LocalConnection):
        def run(self, command, **options):
            return super().run("echo 'tpukit-agent {'", **options)

    (seen,) = run(RemoteWorker(0, lambda: Mute(LocalWorker(tmp_path)))).workers
    assert seen.error == "it gave no answer whether it is ready (status 0)"


def test_a_slice_without_workers_is_refused():
    with pytest.raises(BadInput, match="no workers"):
        ensure()


def ensure(*workers, accelerator=V4_16, timeout=300.0, clock=CLOCK):
    limit = seconds(timeout, clock)
    return ensure_computes(workers, accelerator, JAX, deadline=limit)


def test_the_smoke_test_keeps_the_class_of_the_error_that_decides():
    check_decisive_class(ensure, "the smoke test failed")


def test_a_computation_that_hangs_passes_the_deadline_and_no_traceback_is_shown(tmp_path):
    hung = "echo 'Timeout (0:00:48)!' >&2; echo '  File innermost' >&2; exit 1"
    with pytest.raises(DeadlinePassed) as caught:
        ensure(with_interpreter(tmp_path, hung, devices=8).remote(), accelerator=V3_8)
    assert caught.value.exit_code == 8
    assert re.fullmatch(r"no answer within \d+ s", caught.value.why)
    assert caught.value.details["workers"][0]["log_tail"][-1] == "  File innermost"


@contextlib.contextmanager
def training(worker: LocalWorker, mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that holds the stand-in for a device, of the run that the mark names."""
    device = worker.home / ".tpukit/emulated-devices/accel0"
    device.parent.mkdir(parents=True)
    os.mkfifo(device)
    held = {"env": {**worker.environment, "TPUKIT_JOB": mark}, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(["sleep", "1000"], stdin=device.open("r+b", 0), **held) as process:
        yield process
        process.kill()


def test_devices_that_a_training_job_holds_are_busy_and_not_computed_on(tmp_path):
    """A process of a detached run, named with it; the program is not even started."""
    started = tmp_path / "started"
    worker = with_interpreter(tmp_path, f"touch {started}", devices=8)
    job = tmp_path / ".tpukit/jobs/run.night-3@demo.0"
    job.mkdir(parents=True)
    (job / "command").touch()
    with training(worker, str(job)) as process:
        with pytest.raises(DevicesBusy) as caught:
            ensure(replace(worker.remote(), slice="demo"), accelerator=V3_8)
        known = f"PID {process.pid} (run night-3, sleep 1000)"
    assert caught.value.what == f"the devices of demo worker 0 are busy with {known}"
    assert str(caught.value.fix) == "tpukit attach demo night-3"
    assert caught.value.exit_code == 10
    assert not started.exists()


def test_devices_that_are_let_go_within_seconds_are_not_busy(tmp_path):
    """As by a smoke test whose client has gone: it ends by itself."""
    worker = with_interpreter(tmp_path, "exit 3", devices=8)
    with training(worker, "") as process:
        gone = threading.Timer(1.5, process.kill)
        gone.start()
        (seen,) = run(worker.remote()).workers
        gone.join()
    assert seen.error == "the program gave no answer and ended with status 3"


def test_a_crash_is_a_failed_smoke_test_with_the_end_of_its_output(tmp_path):
    crashing = with_interpreter(tmp_path, "echo no numpy >&2; exit 3", devices=8)
    with pytest.raises(SmokeFailed, match="failed on worker 0") as caught:
        ensure(crashing.remote(), accelerator=V3_8)
    assert caught.value.why.splitlines() == [
        "the program gave no answer and ended with status 3",
        "no numpy",
    ]


def test_the_smoke_test_runs_under_the_lock_of_the_first_worker(tmp_path):
    """The lock's file says whose it is while the interpreter computes, and goes afterwards."""
    seen, lock = tmp_path / "seen", tmp_path / "home" / SMOKE_LOCK
    worker = with_interpreter(tmp_path / "home", f"cat {lock} >{seen}; exit 3")
    with pytest.raises(SmokeFailed):
        ensure(worker.remote(), accelerator=V3_8)
    assert seen.read_text().startswith("PID ")
    assert not lock.exists()


@pytest.mark.full_size
def test_every_level_measures_each_device_and_each_link(jax_home):
    """On CPU devices no figure has a peak; under load no bit and no word is wrong."""
    worker = LocalWorker(jax_home, environment={"TPUKIT_EMULATED_DEVICES": "4"}).remote()
    limit = seconds(300)
    report = smoke(
        [worker], AcceleratorType.parse("v6e-4"), JAX, deadline=limit, load=Load(3, soak_seconds=2)
    )
    assert [seen.error for seen in report.workers] == [""]
    assert report.level == 3
    each = ["matmul", "hbm", "host-to-device", "device-to-host", "soak"]
    places = {
        what: [measurement.place for measurement in report.measurements if measurement.what == what]
        for what in each
    }
    assert places == {key: [f"worker 0 device {number}" for number in range(4)] for key in each}
    others = [
        measurement.place for measurement in report.measurements if measurement.what not in places
    ]
    assert others == [
        "all devices",
        *(f"worker 0 device {n} - worker 0 device {n + 1}" for n in range(3)),
    ]
    assert all(
        measurement.value > 0 and measurement.peak is None for measurement in report.measurements
    )


@pytest.mark.parametrize(
    ("figure", "said", "note"),
    [
        (5000.0, "this measured something else", "report it"),
        (10.0, "matmul 10 TFLOP/s, 16%", "a new slice may get another"),
    ],
)
def test_a_figure_that_no_chip_reaches_is_the_program_s_fault_and_a_low_one_the_chip_s(
    tmp_path, figure, said, note
):
    devices = {**BENCH["devices"], "matmul": [[figure, figure]] * 8}
    (tmp_path / "answer").write_bytes(line(bench={**BENCH, "devices": devices}))
    worker = with_interpreter(tmp_path, f"cat {tmp_path}/answer", devices=0).remote()
    with pytest.raises(SmokeFailed) as caught:
        ensure_computes([worker], V3_8, JAX, deadline=seconds(60), load=Load(2))
    assert said in caught.value.why
    assert note in caught.value.fix.note


def test_a_recipe_without_such_a_level_is_refused_before_anything_is_asked(tmp_path):
    def refuse():
        raise AssertionError("a worker was asked")

    limit = seconds(300)
    for level in (2, 3):
        with pytest.raises(BadInput, match="torch_xla has levels 0 and 1") as caught:
            ensure_computes(
                [RemoteWorker(0, refuse)],
                V3_8,
                Recipe.named("torch_xla"),
                deadline=limit,
                load=Load(level),
            )
        assert "--with jax has all levels" in caught.value.fix.note


def test_a_bench_that_does_not_answer_is_a_failure(tmp_path):
    line = 'TPUKIT-SMOKE {"framework": "jax", "bench": {"devices": {"matmul": [[1e999]]}}}'
    worker = with_interpreter(tmp_path, f"echo '{line}'", devices=8).remote()
    (seen,) = smoke([worker], V3_8, JAX, deadline=seconds(60), load=Load(2)).workers
    assert seen.error.startswith("the program's answer makes no sense")
