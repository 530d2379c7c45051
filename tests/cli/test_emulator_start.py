"""`tpukit emulator start` and `status`: the times of the real service, and gRPC."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
from journeys.command_line import Tpukit


@pytest.fixture
def tpukit(tmp_path: Path) -> Iterator[Tpukit]:
    found = Tpukit(tmp_path)
    yield found
    found("emulator", "stop")


def nodes(address: str, token: str) -> list[str]:
    """List the nodes with Google's client over gRPC without TLS."""
    channel = grpc.insecure_channel(address)
    with channel:
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        parent = "projects/tpukit-local/locations/emulator-local1-a"
        metadata = [("authorization", f"Bearer {token}")]
        return [each.name for each in client.list_nodes(parent=parent, metadata=metadata)]


def test_realistic_creates_take_minutes_of_the_emulator_s_time(tpukit: Tpukit) -> None:
    tpukit.succeeds("emulator", "start", "--realistic")
    tpukit.ends_with(8, "--local", "create", "v3-8", "slow", "--timeout", "1s")
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
    assert opened["grpc"] == f"localhost:{port}"
    assert f"grpc\tlocalhost:{port}" in tpukit.succeeds("emulator", "status").stdout
    environment = tpukit.document("emulator", "env")["environment"]
    token = Path(environment["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]).read_text().strip()
    assert nodes(opened["grpc"], token) == []
    other = tpukit.ends_with(1, "emulator", "start", "--grpc-port", str(port + 1))
    assert f"localhost:{port}" in other.stderr
    assert tpukit.document("emulator", "start", "--grpc-port", "0")["emulator"] == opened
