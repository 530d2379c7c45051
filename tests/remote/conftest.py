"""Fixtures of the SSH tests: a key, a real server, a connector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpukit.clock import Deadline, SystemClock
from tpukit.remote.keys import KeyPair, ensure_key_pair
from tpukit.remote.ssh import Connection, Connector
from tpukit.remote.worker import RemoteWorker

from .server import Server

Within = Callable[[float], Deadline]


@pytest.fixture
def within() -> Within:
    return lambda seconds: Deadline.after(SystemClock(), seconds)


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return ensure_key_pair(tmp_path_factory.mktemp("keys") / "private", "tester")


@pytest.fixture
def server(tmp_path: Path, key: KeyPair) -> Iterator[Server]:
    home = tmp_path / "home"
    home.mkdir()
    server = Server(home).accept(key)
    yield server
    server.close()


@pytest.fixture
def connector(key: KeyPair) -> Iterator[Connector]:
    with Connector(key, SystemClock(), attempt_seconds=30.0) as connector:
        yield connector


@pytest.fixture
def connection(connector: Connector, server: Server, within: Within) -> Connection:
    return connector.connect(server.target(), within(60))


@pytest.fixture
def crew(tmp_path: Path, key: KeyPair) -> Iterator[list[Server]]:
    """Three workers of one slice."""
    servers = []
    for index in range(3):
        home = tmp_path / f"home-{index}"
        home.mkdir()
        servers.append(Server(home).accept(key))
        servers[index].variables["WORKER"] = str(index)
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def workers(crew: list[Server], connector: Connector, within: Within) -> list[RemoteWorker]:
    def way(server: Server) -> Callable[[], Connection]:
        return lambda: connector.connect(server.target(), within(60))

    return [RemoteWorker(index, way(server), "demo") for index, server in enumerate(crew)]
