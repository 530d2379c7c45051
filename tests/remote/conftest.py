"""Fixtures of the SSH tests: a key, a real server, a connector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpukit.clock import Deadline, SystemClock
from tpukit.remote.keys import KeyPair, ensure_key_pair
from tpukit.remote.ssh import Connection, Connector

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
    with Connector(key, SystemClock(), attempt_seconds=5.0) as connector:
        yield connector


@pytest.fixture
def connection(connector: Connector, server: Server, within: Within) -> Connection:
    return connector.connect(server.target(), within(10))
