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
    found = daemon.running(Paths.from_environment(own_emulator).emulator)
    assert found
    words = [sys.executable, "-m", "tpukit", verb, "demo", "--", "echo started; sleep 120"]
    with subprocess.Popen(
        words, env=own_emulator, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for _ in range(2 if verb == "run" else 1):
            assert "started" in process.stdout.readline()
        node = f"projects/{made['project']}/locations/{made['zone']}/nodes/demo"
        EmulatorClient(found.url, found.token).preempt(node)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 7, said
    assert "slice demo is PREEMPTED" in said
