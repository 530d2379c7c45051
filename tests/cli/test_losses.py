"""A slice that is preempted under a command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cli.conftest import Run
from tpukit.emulator.control_client import EmulatorClient
from tpukit.emulator.process import daemon
from tpukit.paths import Paths

pytestmark = pytest.mark.process


@pytest.mark.parametrize("verb", ["run", "ssh"])
def test_a_preemption_under_a_command_is_a_loss(
    run: Run, own_emulator: dict[str, str], verb: str
) -> None:
    made = run("create", "v4-16", "demo", "--json", environment=own_emulator).document["slice"]
    assert run("firewall", "apply", "demo", environment=own_emulator).status == 0
    running = daemon.running(Paths.from_environment(own_emulator).emulator)
    assert running
    words = [sys.executable, "-m", "tpukit", verb, "demo", "--", "echo started; sleep 120"]
    with subprocess.Popen(
        words, env=own_emulator, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for _ in range(2 if verb == "run" else 1):
            assert "started" in process.stdout.readline()
        node = f"projects/{made['project']}/locations/{made['zone']}/nodes/demo"
        EmulatorClient(running.url, running.token).preempt(node)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 7, said
    assert "slice demo is PREEMPTED" in said


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
