"""Host keys at first sight, where guest attributes are forbidden."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from cli.conftest import Run
from tpukit.emulator.control_client import EmulatorClient
from tpukit.emulator.process import daemon
from tpukit.paths import Paths

pytestmark = pytest.mark.process
ACCEPT = "--accept-new-host-keys"


@pytest.fixture
def emulator(run: Run, own_emulator: dict[str, str]) -> EmulatorClient:
    """A slice of two workers whose guest attributes nobody may read."""
    own_emulator["TPUKIT_KEEP_HINTS"] = "no"
    assert run("create", "v4-16", "demo", environment=own_emulator).status == 0
    assert run("firewall", "apply", "demo", environment=own_emulator).status == 0
    running = daemon.running(Paths.from_environment(own_emulator).emulator)
    assert running
    client = EmulatorClient(running.url, running.token)
    forbidden = {"method": "nodes.getGuestAttributes", "kind": "status", "times": 1000}
    client.add_fault({**forbidden, "status": "PERMISSION_DENIED"})
    return client


@pytest.fixture
def port_22() -> None:
    """Skip the test where workers have another port: the hidden guest attributes would tell it."""
    try:
        socket.create_server(("127.77.0.1", 22)).close()
    except OSError as error:
        pytest.skip(f"no port 22 for workers ({error}): keys at first sight are NOT checked here")


def test_forbidden_guest_attributes_are_an_error_that_names_the_way_through(
    run: Run, own_emulator: dict[str, str], emulator: EmulatorClient
) -> None:
    result = run("run", "demo", "--", "true", environment=own_emulator).says(4)
    assert f"fix: if your organisation hides guest attributes, {ACCEPT}" in result.err


@pytest.mark.usefixtures("port_22")
def test_a_host_key_taken_at_first_sight_is_held_to_from_then_on(
    run: Run, own_emulator: dict[str, str], emulator: EmulatorClient
) -> None:
    def call(*words: str) -> tuple[int, str]:
        result = run(*words, environment=own_emulator)
        return result.status, result.err

    status, said = call("run", "demo", "--worker", "0", ACCEPT, "--", "true")
    assert status == 0, said
    assert "demo worker 0: ssh-ed25519 SHA256:" in said
    assert call("run", "demo", "--worker", "0", "--", "true") == (0, "")
    assert call("run", "demo", "--worker", "1", "--", "true")[0] == 4
    emulator.add_worker_fault({"node": "*/demo", "worker": 0, "fault": "swapped-host-key"})
    status, said = call("run", "demo", "--worker", "0", "--timeout", "5s", ACCEPT, "--", "true")
    assert status == 9, said
    assert "is not demo worker 0" in said
    status, said = call("ssh", "demo", "--timeout", "5s", "--", "true")
    assert status == 9, said
    assert "fix: rm " in said


@pytest.mark.usefixtures("port_22")
def test_openssh_gets_the_host_keys_that_were_taken(
    run: Run, own_emulator: dict[str, str], emulator: EmulatorClient, tmp_path: Path
) -> None:
    result = run("ssh-config", "demo", ACCEPT, environment=own_emulator)
    assert result.status == 0, result.err
    config = str(Paths.from_environment(own_emulator).ssh / "config")
    for host in ("tpu.demo", "tpu.demo.1"):
        subprocess.run(["ssh", "-F", config, host, "true"], check=True, timeout=60)
