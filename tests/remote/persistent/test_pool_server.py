"""The connection pool in this process: who gets which connection, for how long."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.clocks import HandClock
from support.ssh_fixtures import Within
from support.ssh_server import Server

from tpukit.clock import SystemClock
from tpukit.errors import HostKeyMismatch, TransportFailed
from tpukit.remote.command.attached import CommandOutcome, CommandRequest
from tpukit.remote.connection.client import Connection, Connector
from tpukit.remote.connection.keys import KeyPair
from tpukit.remote.connection.target import Target
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.persistent import pool_client
from tpukit.remote.persistent.pool import Pool
from tpukit.remote.persistent.pool_client import PooledWorkers, PoolRequest
from tpukit.remote.persistent.pool_server import PoolServer
from tpukit.remote.persistent.pool_socket import PoolSocket

IDLE_SECONDS = 600.0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def pool(clock: HandClock) -> Iterator[Pool]:
    pool = Pool(clock, IDLE_SECONDS)
    yield pool
    pool.close()


def shown(pool: Pool) -> list[tuple[object, object]]:
    """Return (busy, idle seconds) of each connection in the pool."""
    return [(each["busy"], each["idle_seconds"]) for each in pool.overview()]


def test_a_released_connection_is_used_again(
    pool: Pool, server: Server, key: KeyPair, within: Within
) -> None:
    with pool.acquire(server.target(), key, within(60)) as first:
        assert first.run("echo one", deadline=within(60)).text == "one\n"
        assert shown(pool) == [(True, 0.0)]
    with pool.acquire(server.target(), key, within(60)) as second:
        assert second.run("echo two", deadline=within(60)).text == "two\n"
    assert len(server.connections) == 1


def test_a_connection_in_use_is_given_to_nobody_else(
    pool: Pool, server: Server, key: KeyPair, within: Within
) -> None:
    with (
        pool.acquire(server.target(), key, within(60)),
        pool.acquire(server.target(), key, within(60)),
    ):
        assert len(server.connections) == 2
    assert [busy for busy, _ in shown(pool)] == [False, False]


def test_nobody_s_connection_is_closed_after_the_idle_time(
    pool: Pool, server: Server, key: KeyPair, within: Within, clock: HandClock
) -> None:
    pool.acquire(server.target(), key, within(60)).close()
    used = pool.acquire(replace(server.target(), worker=1), key, within(60))
    clock.advance(2 * IDLE_SECONDS)
    pool.close_idle()
    assert shown(pool) == [(True, 0.0)]  # it took the place of the other worker at that address
    used.close()
    clock.advance(IDLE_SECONDS / 2)
    pool.close_idle()
    assert len(shown(pool)) == 1
    assert not pool.idle
    clock.advance(IDLE_SECONDS)
    pool.close_idle()
    assert shown(pool) == []
    assert pool.idle


def test_a_connection_on_which_a_command_was_lost_is_not_used_again(
    pool: Pool, server: Server, key: KeyPair, within: Within
) -> None:
    with pool.acquire(server.target(), key, within(60)) as used:
        server.on_command = server.cut
        with pytest.raises(Exception, match="lost"):
            used.run("sleep 1000", deadline=within(60))
    assert shown(pool) == []


def test_a_connection_serves_the_host_keys_it_was_proved_against_alone(
    pool: Pool, server: Server, key: KeyPair, within: Within, tmp_path: Path
) -> None:
    pool.acquire(server.target(), key, within(60)).close()
    (tmp_path / "other").mkdir()
    other = Server(tmp_path / "other")
    with pytest.raises(HostKeyMismatch):
        pool.acquire(server.target(other.public), key, within(60))
    other.close()
    assert shown(pool) == []


@pytest.fixture
def local_pool(tmp_path: Path) -> Iterator[PoolSocket]:
    """A pool in this process that nobody has to start."""
    local_pool = PoolSocket(tmp_path / "k")
    (tmp_path / "k").mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "k" / "pool"))
    listener.listen(64)
    pool_server = PoolServer(SystemClock(), IDLE_SECONDS)
    thread = threading.Thread(target=pool_server.serve, args=(listener,))
    thread.start()
    yield local_pool
    connected = local_pool.connect()
    connected.send(request="end")
    thread.join(60)
    connected.close()
    assert not thread.is_alive()


@pytest.fixture
def fleet(
    local_pool: PoolSocket,
    key: KeyPair,
    servers: list[Server],
    connector: Connector,
    within: Within,
) -> Callable[[], PooledWorkers]:
    """Make what a command works with; the cloud is asked by `asked`."""

    def connect(server: Server) -> Callable[[], Connection]:
        return lambda: connector.connect(server.target(), within(60))

    def find() -> list[RemoteWorker]:
        return [
            RemoteWorker(place, connect(each), "demo", replace(each.target(), worker=place))
            for place, each in enumerate(servers)
        ]

    return lambda: PooledWorkers(local_pool, PoolRequest("place", key), find)


def run(
    fleet: PooledWorkers, command: str, workers: Sequence[RemoteWorker] = ()
) -> list[CommandOutcome]:
    going = fleet.run(CommandRequest(command), SystemClock(), lambda *_: None)
    return going.on_all(workers or fleet.workers)


def texts(results: Sequence[CommandOutcome]) -> list[str]:
    return [each.value.text if each.value else str(each.error) for each in results]


def test_the_next_command_knows_the_workers_and_makes_no_connection(
    fleet: Callable[[], PooledWorkers], servers: list[Server]
) -> None:
    assert texts(run(fleet(), "echo $WORKER")) == ["0\n", "1\n", "2\n"]
    again = fleet()
    assert [each.label for each in again.workers] == [f"demo worker {place}" for place in range(3)]
    assert texts(run(again, "echo $WORKER; exit 3")) == ["0\n", "1\n", "2\n"]
    assert [len(server.connections) for server in servers] == [1, 1, 1]


def test_a_worker_that_moved_is_found_again_and_kept_from_then_on(
    fleet: Callable[[], PooledWorkers], servers: list[Server], key: KeyPair
) -> None:
    run(fleet(), "true")
    home = servers[1].home
    servers[1].close()
    servers[1] = Server(home).accept(key)
    assert texts(run(fleet(), "echo x >>runs; cat runs")) == ["x\n"] * 3
    assert texts(run(fleet(), "echo y")) == ["y\n"] * 3
    made = len(servers[1].connections)
    assert texts(run(fleet(), "echo z")) == ["z\n"] * 3
    assert len(servers[1].connections) == made


def test_a_worker_that_freezes_is_given_up_sooner_while_a_command_runs_on_it(
    distant: tuple[subprocess.Popen[str], Target], key: KeyPair, within: Within, clock: HandClock
) -> None:
    """Also over a connection that nobody used for a while, when more silence was allowed."""
    process, target = distant
    pool = Pool(clock, IDLE_SECONDS, busy_silence=1.0, idle_silence=3600.0)
    pool.acquire(target, key, within(60)).close()
    with pytest.raises(TransportFailed) as lost, pool.acquire(target, key, within(60)) as used:
        used.run(
            "echo go; sleep 1000",
            on_output=lambda *_: process.send_signal(signal.SIGSTOP),
            deadline=within(60),
        )
    assert lost.value.reason == "it was silent for 1 s"
    assert shown(pool) == []
    pool.close()


def test_what_is_kept_is_listed(fleet: Callable[[], PooledWorkers], local_pool: PoolSocket) -> None:
    run(fleet(), "true")
    found = pool_client.overview(local_pool)
    assert found
    assert [each["label"] for each in found["connections"]] == ["demo worker 0"] * 3
    assert not any(each["busy"] for each in found["connections"])
