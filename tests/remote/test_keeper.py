"""The keeper of connections and its pool, in this process: what is lent, to whom, how long."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tpukit.clock import SystemClock
from tpukit.errors import HostKeyMismatch
from tpukit.kept_fleet import KeptFleet
from tpukit.remote import kept
from tpukit.remote.keeper import Keeper
from tpukit.remote.keeper_home import KeeperHome
from tpukit.remote.kept import Request
from tpukit.remote.keys import KeyPair
from tpukit.remote.pool import Pool
from tpukit.remote.runs import Order, Result
from tpukit.remote.ssh import Connection, Connector
from tpukit.remote.worker import RemoteWorker

from .clocks import HandClock
from .conftest import Within
from .server import Server

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


def test_what_is_given_back_is_lent_again(
    pool: Pool, server: Server, key: KeyPair, within: Within
) -> None:
    with pool.lend(server.target(), key, within(60)) as first:
        assert first.run("echo one", deadline=within(60)).text == "one\n"
        assert shown(pool) == [(True, 0.0)]
    with pool.lend(server.target(), key, within(60)) as second:
        assert second.run("echo two", deadline=within(60)).text == "two\n"
    assert len(server.connections) == 1


def test_what_is_lent_is_lent_to_nobody_else(
    pool: Pool, server: Server, key: KeyPair, within: Within
) -> None:
    with pool.lend(server.target(), key, within(60)), pool.lend(server.target(), key, within(60)):
        assert len(server.connections) == 2
    assert [busy for busy, _ in shown(pool)] == [False, False]


def test_nobody_s_connection_is_closed_after_the_idle_time(
    pool: Pool, server: Server, key: KeyPair, within: Within, clock: HandClock
) -> None:
    pool.lend(server.target(), key, within(60)).close()
    lent = pool.lend(replace(server.target(), worker=1), key, within(60))
    clock.advance(2 * IDLE_SECONDS)
    pool.close_idle()
    assert shown(pool) == [(True, 0.0)]  # it took the place of the other worker at that address
    lent.close()
    clock.advance(IDLE_SECONDS / 2)
    pool.close_idle()
    assert len(shown(pool)) == 1
    assert not pool.idle
    clock.advance(IDLE_SECONDS)
    pool.close_idle()
    assert shown(pool) == []
    assert pool.idle


def test_a_connection_on_which_a_command_was_lost_is_not_lent_again(
    pool: Pool, server: Server, key: KeyPair, within: Within
) -> None:
    with pool.lend(server.target(), key, within(60)) as lent:
        server.on_command = server.cut
        with pytest.raises(Exception, match="lost"):
            lent.run("sleep 1000", deadline=within(60))
    assert shown(pool) == []


def test_a_connection_serves_the_host_keys_it_was_proved_against_alone(
    pool: Pool, server: Server, key: KeyPair, within: Within, tmp_path: Path
) -> None:
    pool.lend(server.target(), key, within(60)).close()
    (tmp_path / "other").mkdir()
    other = Server(tmp_path / "other")
    with pytest.raises(HostKeyMismatch):
        pool.lend(server.target(other.public), key, within(60))
    other.close()
    assert shown(pool) == []


@pytest.fixture
def home(tmp_path: Path) -> Iterator[KeeperHome]:
    """A keeper in this process that nobody has to start."""
    home = KeeperHome(tmp_path / "k")
    (tmp_path / "k").mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "k" / "keeper"))
    listener.listen(64)
    keeper = threading.Thread(target=Keeper(SystemClock(), IDLE_SECONDS).serve, args=(listener,))
    keeper.start()
    yield home
    line = home.line()
    line.tell(ask="end")
    keeper.join(60)
    line.close()
    assert not keeper.is_alive()


@pytest.fixture
def fleet(
    home: KeeperHome, key: KeyPair, crew: list[Server], connector: Connector, within: Within
) -> Callable[[], KeptFleet]:
    """Make what a command works with; the cloud is asked by `asked`."""

    def way(server: Server) -> Callable[[], Connection]:
        return lambda: connector.connect(server.target(), within(60))

    def find() -> list[RemoteWorker]:
        return [
            RemoteWorker(place, way(each), "demo", replace(each.target(), worker=place))
            for place, each in enumerate(crew)
        ]

    return lambda: KeptFleet(home, Request("place", key), find)


def run(fleet: KeptFleet, command: str, workers: Sequence[RemoteWorker] = ()) -> list[Result]:
    going = fleet.run(Order(command), SystemClock(), lambda *_: None)
    return going.on_all(workers or fleet.workers)


def texts(results: Sequence[Result]) -> list[str]:
    return [each.value.text if each.value else str(each.error) for each in results]


def test_the_next_command_knows_the_workers_and_makes_no_connection(
    fleet: Callable[[], KeptFleet], crew: list[Server]
) -> None:
    assert texts(run(fleet(), "echo $WORKER")) == ["0\n", "1\n", "2\n"]
    again = fleet()
    assert [each.label for each in again.workers] == [f"demo worker {place}" for place in range(3)]
    assert texts(run(again, "echo $WORKER; exit 3")) == ["0\n", "1\n", "2\n"]
    assert [len(server.connections) for server in crew] == [1, 1, 1]


def test_a_worker_that_moved_is_found_again_and_kept_from_then_on(
    fleet: Callable[[], KeptFleet], crew: list[Server], key: KeyPair
) -> None:
    run(fleet(), "true")
    home = crew[1].home
    crew[1].close()
    crew[1] = Server(home).accept(key)
    assert texts(run(fleet(), "echo x >>runs; cat runs")) == ["x\n"] * 3
    assert texts(run(fleet(), "echo y")) == ["y\n"] * 3
    made = len(crew[1].connections)
    assert texts(run(fleet(), "echo z")) == ["z\n"] * 3
    assert len(crew[1].connections) == made


def test_what_is_kept_is_listed(fleet: Callable[[], KeptFleet], home: KeeperHome) -> None:
    run(fleet(), "true")
    found = kept.overview(home)
    assert found
    assert [each["label"] for each in found["connections"]] == ["demo worker 0"] * 3
    assert not any(each["busy"] for each in found["connections"])
