"""The smoke test over real processes: real JAX on virtual devices, and faulty interpreters."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import subprocess
import threading
import time
from importlib.resources import files
from pathlib import Path

import pytest
from emulator.crew import eventually
from provision.local import HastyClock, LocalConnection, LocalWorker, seconds
from remote.clocks import HandClock

from tpukit.accelerators import AcceleratorType
from tpukit.clock import SystemClock
from tpukit.errors import BadInput, TransportFailed
from tpukit.provision.recipes import recipe_names, venv_python
from tpukit.remote.worker import RemoteWorker
from tpukit.smoke.run import FRAMEWORKS, smoke

CLOCK = SystemClock()
V3_8 = AcceleratorType.parse("v3-8")
V4_16 = AcceleratorType.parse("v4-16")


def run(*workers, accelerator=V3_8, python="~/python", timeout=300.0, clock=CLOCK, framework="jax"):
    return smoke(
        workers,
        accelerator,
        framework,
        python=python,
        clock=clock,
        deadline=seconds(timeout, clock),
    )


def with_interpreter(home: Path, script: str, index: int = 0, devices: int = 4) -> LocalWorker:
    """A worker whose interpreter is a shell script."""
    home.mkdir(exist_ok=True)
    (home / "python").write_text(f"#!/bin/sh\n{script}\n")
    (home / "python").chmod(0o755)
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
    report = run(worker.remote(), python=venv_python("jax"))
    (seen,) = report.workers
    assert (seen.error, seen.log_tail) == ("", ())
    assert report.stand_in == "8 CPU devices standing in for 8 TPU cores"
    assert (seen.devices, seen.global_devices, seen.processes) == (8, 8, 1)
    assert (seen.matmul, seen.global_sum) == (16777216.0, 36.0)
    assert (seen.platform, seen.emulated, seen.framework) == ("cpu", True, "jax")
    assert len(worker.commands) == 2, "one look and one run"


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
    report = run(*members, accelerator=V4_16, python=venv_python("jax"))
    assert [seen.error for seen in report.workers] == ["", ""]
    assert [seen.processes for seen in report.workers] == [2, 2]
    assert [seen.global_sum for seen in report.workers] == [36.0, 36.0]
    assert report.stand_in == "8 CPU devices standing in for 8 TPU chips"


def test_a_worker_with_seven_devices_is_no_v3_8(jax_home):
    worker = LocalWorker(jax_home, environment={"TPUKIT_EMULATED_DEVICES": "7"})
    report = run(worker.remote(), python=venv_python("jax"))
    assert report.workers[0].error.startswith("7 of 8 devices")
    assert report.stand_in == "7 CPU devices standing in for 8 TPU cores"


def test_a_worker_that_is_not_emulated_has_to_compute_on_a_tpu(jax_home):
    report = run(LocalWorker(jax_home).remote(), python=venv_python("jax"))
    (seen,) = report.workers
    assert seen.error == "the program gave no answer and ended with status 1"
    assert any("initialize backend 'tpu'" in line for line in seen.log_tail)
    assert report.stand_in == ""


def start_hanging(python: Path, seconds_allowed: str) -> subprocess.Popen[bytes]:
    """Start the program with a computation that never ends."""
    program = files("tpukit.smoke").joinpath("programs/smoke.py").read_text()
    hang = "compute_jax = lambda workers: time.sleep(6000)\n"
    entry = "FRAMEWORKS['jax'] = (prepare_jax, compute_jax, ())\n"
    process = subprocess.Popen(
        [python, "-", "jax", "1", seconds_allowed],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write(program.replace("def versions(", hang + entry + "def versions(").encode())
    process.stdin.close()
    return process


def test_a_program_whose_time_is_over_ends_itself_and_shows_where_it_was(jax_home):
    process = start_hanging(jax_home / venv_python("jax"), "1")
    assert process.wait(timeout=120) == 1
    assert process.stderr.read().startswith(b"Timeout (0:00:01)!")


def test_a_program_ends_when_nobody_listens_any_more(jax_home):
    process = start_hanging(jax_home / venv_python("jax"), "600")
    process.stdout.close()
    assert process.wait(timeout=120) == 1


def test_without_a_provisioned_python_it_says_what_comes_first(tmp_path):
    worker = LocalWorker(tmp_path, environment={"TPUKIT_EMULATED_DEVICES": "8"})
    (seen,) = run(worker.remote()).workers
    assert seen.error == "there is no Python at ./python: tpukit provision comes first"


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
    silent = with_interpreter(tmp_path, "touch started; exec sleep 6000")

    def pass_time() -> None:
        assert eventually((tmp_path / "started").exists)
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
            return super().run("echo TPUKIT-READY maybe 8", **options)

    (seen,) = run(RemoteWorker(0, lambda: Mute(LocalWorker(tmp_path)))).workers
    assert seen.error == "it cannot say whether it is ready"


@pytest.mark.parametrize("framework", ["tensorflow", "", "jax; rm"])
def test_a_framework_without_a_program_is_refused(tmp_path, framework):
    with pytest.raises(BadInput, match="no smoke test"):
        run(LocalWorker(tmp_path).remote(), framework=framework)


def test_every_recipe_has_a_smoke_test():
    assert set(FRAMEWORKS) == set(recipe_names())
