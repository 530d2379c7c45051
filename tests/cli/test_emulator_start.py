"""`tpukit emulator start` and `status`: times, gRPC, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
from support.command_line import Tpukit
from support.operation_metadata import of_this_run

from tpukit.emulator.core.operation_metadata import OPERATION_METADATA

pytestmark = pytest.mark.process


@pytest.fixture
def tpukit(tmp_path: Path) -> Iterator[Tpukit]:
    with Tpukit(tmp_path) as found:
        yield found


def nodes(address: str, token: str) -> list[str]:
    """List the nodes with Google's client over gRPC without TLS."""
    channel = grpc.insecure_channel(address)
    with channel:
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        parent = "projects/tpukit-local/locations/emulator-local1-a"
        metadata = [("authorization", f"Bearer {token}")]
        return [node.name for node in client.list_nodes(parent=parent, metadata=metadata)]


@pytest.mark.full_size
def test_realistic_creates_take_minutes_of_the_emulator_s_time(tpukit: Tpukit) -> None:
    tpukit.succeeds("emulator", "start", "--realistic")
    tpukit.succeeds("emulator", "clock", "speed", "0")
    tpukit.ends_with(8, "--local", "create", "v3-8", "slow", "--timeout", "5s")
    tpukit.succeeds("emulator", "clock", "advance", "100s")
    assert tpukit.document("--local", "describe", "slow")["slice"]["state"] == "CREATING"
    tpukit.succeeds("emulator", "clock", "advance", "60s")
    assert tpukit.document("--local", "describe", "slow")["slice"]["state"] == "READY"


def test_realistic_and_a_number_of_seconds_contradict_each_other(tpukit: Tpukit) -> None:
    done = tpukit.ends_with(2, "emulator", "start", "--realistic", "--create-seconds", "2")
    assert "--realistic" in done.stderr
    assert not tpukit.processes()


def test_grpc_is_served_on_the_port_that_status_names_and_on_no_other(tpukit: Tpukit) -> None:
    assert "grpc" not in tpukit.document("emulator", "start")["emulator"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    opened = tpukit.document("emulator", "start", "--grpc-port", str(port))["emulator"]
    assert opened["grpc"] == f"127.0.0.1:{port}"
    assert f"grpc\t127.0.0.1:{port}" in tpukit.succeeds("emulator", "status").stdout
    environment = tpukit.document("emulator", "env")["environment"]
    token = Path(environment["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]).read_text().strip()
    assert nodes(opened["grpc"], token) == []
    other = tpukit.ends_with(1, "emulator", "start", "--grpc-port", str(port + 1))
    assert f"127.0.0.1:{port}" in other.stderr
    assert tpukit.document("emulator", "start", "--grpc-port", "0")["emulator"] == opened


def test_flags_that_agree_with_the_emulator_that_runs_change_nothing(tpukit: Tpukit) -> None:
    started = tpukit.document("emulator", "start", "--create-seconds", "1", "--engine", "portable")
    port = started["emulator"]["url"].rpartition(":")[2]
    for words in (
        (),
        ("--create-seconds", "1.0", "--engine", "auto", "--port", port),
        ("--engine", "portable", "--port", "0"),
    ):
        assert tpukit.document("emulator", "start", *words) == started


def test_flags_that_differ_from_the_emulator_that_runs_are_refused(
    tpukit: Tpukit, tmp_path: Path
) -> None:
    scenario = tmp_path / "day.toml"
    scenario.write_text('create_seconds = 5\n[[faults]]\npreset = "stockout"\n')
    started = tpukit.document("emulator", "start")
    port = int(started["emulator"]["url"].rpartition(":")[2])
    own, other = sorted(OPERATION_METADATA, key=lambda kind: kind != of_this_run())
    other_metadata = ("--operation-metadata", other)
    why_not = f"the metadata of its operations is {own}, not {other}"
    for words, why in (
        (("--create-seconds", "1"), "a create takes 2 s, not 1 s"),
        (("--port", str(port + 1)), f"it listens on port {port}, not {port + 1}"),
        (("--engine", "namespaces"), "its workers are portable, not namespaces"),
        (other_metadata, why_not),
        (("--scenario", str(scenario)), "a create takes 2 s, not 5 s"),
    ):
        refused = tpukit.ends_with(2, "emulator", "start", *words).stderr
        assert f"why: {why}\n" in refused
        assert "fix: tpukit emulator stop" in refused
    assert tpukit.document("emulator", "fault", "list")["faults"] == []
    assert tpukit.document("emulator", "start") == started
    tpukit.succeeds("emulator", "start", "--realistic")
    tpukit.succeeds("emulator", "start", "--realistic")
    tpukit.ends_with(2, "emulator", "start", "--create-seconds", "2")


def test_an_ssh_server_of_this_machine_on_the_workers_port_is_warned_of(tpukit: Tpukit) -> None:
    """gcloud would offer it the user's key; here the emulator has found one at its start."""
    told = "this machine's own SSH server answers on port 22 of the workers' addresses"
    assert told not in tpukit.succeeds("emulator", "start", "--engine", "paper").stderr
    document = tpukit.home / "tpukit" / "state" / "emulator" / "emulator.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "foreign_ssh": True}))
    for word in ("start", "env"):
        done = tpukit.succeeds("emulator", word)
        assert told in done.stderr, word
        assert told not in done.stdout
    page = Path(__file__).parents[2] / "docs" / "how-to" / "use-gcloud-with-the-emulator.md"
    for way_out in ("--engine namespaces", "ListenAddress", "sshd_config"):
        assert way_out in done.stderr
        assert way_out in page.read_text()


def test_a_damaged_state_file_is_named_with_what_to_type(tpukit: Tpukit) -> None:
    tpukit.succeeds("emulator", "start")
    tpukit.succeeds("emulator", "stop")
    state = tpukit.home / "tpukit" / "state" / "emulator" / "state.db"
    state.write_text('{"version": 1')
    told = tpukit.ends_with(2, "--local", "list").stderr.splitlines()
    assert told[0].startswith(f"error: the emulator's state file {state} cannot be used (")
    assert told[1] == "why: it is cut off or damaged, and no part of it is used"
    assert told[2] == f"fix: mv {state} {state}.old"
    assert told[3] == "note: it then starts without slices, and removes the files of their workers"
    state.rename(f"{state}.old")
    assert tpukit.document("--local", "list")["slices"] == []


@pytest.mark.full_size
def test_an_emulator_that_does_not_answer_is_told_as_that_and_is_there_afterwards(
    tpukit: Tpukit,
) -> None:
    """Nothing is started beside it; "another one runs" would lead to `stop`."""
    pid = tpukit.document("emulator", "start", "--engine", "paper")["emulator"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        for words in (("--local", "list"), ("emulator", "status"), ("emulator", "start")):
            told = tpukit.ends_with(1, *words).stderr.splitlines()
            assert "runs but does not answer" in told[0]
            assert told[1] == "fix: tpukit emulator status"
            assert "another" not in " ".join(told)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert tpukit.document("emulator", "status")["emulator"]["pid"] == pid


def test_a_port_that_is_taken_is_an_error_of_one_line(tpukit: Tpukit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = tpukit.ends_with(2, "emulator", "start", "--port", str(port)).stderr
    assert told == f"error: cannot listen on port {port} (Address already in use)\n"
