"""A slice that is preempted under a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Run
from tpukit.emulator.control_client import EmulatorClient
from tpukit.emulator.process import daemon
from tpukit.paths import Paths

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("verb", ["run", "train", "ssh"])
def test_a_preemption_under_a_command_is_a_loss(
    run: Run, own_emulator: dict[str, str], tmp_path: Path, verb: str
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "train.py").touch()
    made = run("create", "v4-16", "demo", "--json", environment=own_emulator).document["slice"]
    assert run("firewall", "apply", "demo", environment=own_emulator).status == 0
    running = daemon.running(Paths.from_environment(own_emulator).emulator)
    assert running
    words = [sys.executable, "-m", "tpukit", verb, "demo", "--", "echo started; sleep 120"]
    with subprocess.Popen(
        words,
        env=own_emulator,
        cwd=tmp_path / "app",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        for _ in range(1 if verb == "ssh" else 2):
            assert "started" in process.stdout.readline()
        node = f"projects/{made['project']}/locations/{made['zone']}/nodes/demo"
        EmulatorClient(running.url, running.token).preempt(node)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 7, said
    assert "slice demo is PREEMPTED" in said
    assert f": tpukit --local up v4-16 demo --zone {made['zone']} --recreate\n" in said


def test_one_lost_slice_of_several_hides_no_run_of_the_others_and_can_be_left_out(
    run: Run, own_emulator: dict[str, str]
) -> None:
    for name in ("exp-0", "exp-1", "exp-2"):
        assert run("create", "v3-8", name, environment=own_emulator).status == 0
        assert run("firewall", "apply", name, environment=own_emulator).status == 0
    words = ("run", "exp-*", "--detach", "--run-id", "one", "--", "true")
    assert run(*words, environment=own_emulator).status == 0
    assert run("emulator", "preempt", "exp-1", environment=own_emulator).status == 0
    listed = run("jobs", "exp-*", environment=own_emulator)
    assert listed.status == 7
    assert [line.split("\t")[1] for line in listed.out.splitlines()] == ["exp-0", "exp-2"]
    assert "warning: slice exp-1 is PREEMPTED: its workers are gone\n" in listed.err
    assert "next: tpukit --local up v3-8 exp-1 " in listed.err
    document = run("jobs", "exp-*", "one", "--json", environment=own_emulator).document
    assert [failed["slice"] for failed in document["failed"]] == ["exp-1"]
    refused = run("run", "exp-*", "--", "touch ran", environment=own_emulator).says(7)
    assert "error: slice exp-1 is PREEMPTED" in refused.err
    assert "fix: to leave it out, name the others: exp-0,exp-2\n" in refused.err
    left = run("run", "exp-0,exp-2", "--", "! test -e ran", environment=own_emulator)
    assert left.status == 0
    assert run("emulator", "preempt", "exp-2", environment=own_emulator).status == 0
    two = run("run", "exp-*", "--", "true", environment=own_emulator).says(7)
    assert "also: slice exp-2 is PREEMPTED" in two.err
    assert run("emulator", "preempt", "exp-0", environment=own_emulator).status == 0
    run("jobs", "exp-*", environment=own_emulator).says(7)


def test_maintenance_is_named_where_a_worker_is_silent_and_not_where_it_answers(
    run: Run, own_emulator: dict[str, str]
) -> None:
    """Both were seen on real slices: docs/reference/real-workers.md."""
    assert run("create", "v3-8", "demo", environment=own_emulator).status == 0
    assert run("firewall", "apply", "demo", environment=own_emulator).status == 0
    ill = run("emulator", "health", "demo", "UNHEALTHY_MAINTENANCE", environment=own_emulator)
    assert ill.status == 0, ill.err
    ssh = ("ssh", "demo", "--timeout", "6s", "--", "true")
    answering = run(*ssh, environment=own_emulator)
    assert (answering.status, answering.err) == (0, "")
    run("emulator", "worker", "demo", "0", "--fault", "dead", environment=own_emulator)
    silent = run(*ssh, environment=own_emulator)
    assert silent.status == 255
    assert "the slice is UNHEALTHY_MAINTENANCE: its workers may be out of reach" in silent.err
    assert "\nfix: tpukit --local wait demo --zone emulator-local1-a --for ssh\n" in silent.err
    assert "firewall" not in silent.err
