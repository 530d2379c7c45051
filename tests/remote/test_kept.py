"""Connections that a process of their own keeps between commands."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncssh
import psutil
import pytest

from tpukit.clock import SystemClock
from tpukit.errors import BadInput, HostKeyMismatch, NotFound, TpukitError, TransportFailed
from tpukit.remote import kept
from tpukit.remote.fanout import fan_out
from tpukit.remote.frames import Gone
from tpukit.remote.keeper_home import KeeperHome
from tpukit.remote.kept import KeptRun, Request, known_workers
from tpukit.remote.keys import KeyPair
from tpukit.remote.runs import Order, Result
from tpukit.remote.ssh import Connection, Connector
from tpukit.remote.worker import RemoteWorker

from .conftest import Within
from .server import Server


@dataclass
class Client:
    """Commands as a tpukit of its own would run them, each with a keeper that may be there."""

    home: KeeperHome
    request: Request
    workers: list[RemoteWorker]
    heard: dict[tuple[int, str], bytes] = field(default_factory=lambda: defaultdict(bytes))

    def run(
        self, command: str, workers: Sequence[RemoteWorker] = (), **how: object
    ) -> list[Result]:
        return self.start(command, **how).on_all(workers or self.workers)

    def start(self, command: str, **how: object) -> KeptRun:
        order = Order(command, **how)  # type: ignore[arg-type]
        return KeptRun(order, SystemClock(), self.hear, self.home, self.request, self.workers)

    def hear(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        self.heard[worker.index, stream] += chunk

    @property
    def connections(self) -> list[dict[str, Any]]:
        found = kept.overview(self.home)
        return found["connections"] if found else []

    @property
    def keeper(self) -> psutil.Process:
        found = kept.overview(self.home)
        assert found
        return psutil.Process(found["process"])


@pytest.fixture
def home(tmp_path: Path) -> Iterator[KeeperHome]:
    home = KeeperHome(tmp_path / "k")
    yield home
    kept.stop(home)


@pytest.fixture
def client(
    home: KeeperHome, key: KeyPair, crew: list[Server], connector: Connector, within: Within
) -> Client:
    """A client that knows three workers, and can reach them without the keeper too."""

    def ordinary(server: Server) -> Callable[[], Connection]:
        return lambda: connector.connect(server.target(), within(60))

    workers = [
        RemoteWorker(place, ordinary(each), "demo", replace(each.target(), worker=place))
        for place, each in enumerate(crew)
    ]
    return Client(home, Request("place", key), workers)


def texts(results: Sequence[Result]) -> list[str]:
    return [each.value.text if each.value else str(each.error) for each in results]


def made(crew: Sequence[Server]) -> list[int]:
    """How many connections each server has seen."""
    return [len(server.connections) for server in crew]


def test_a_second_command_finds_the_connections_of_the_first(
    client: Client, crew: list[Server]
) -> None:
    assert texts(client.run("echo one $WORKER")) == ["one 0\n", "one 1\n", "one 2\n"]
    assert texts(client.run("echo two $WORKER")) == ["two 0\n", "two 1\n", "two 2\n"]
    assert made(crew) == [1, 1, 1]


def test_a_command_has_its_streams_its_environment_and_its_status(client: Client) -> None:
    results = client.run(
        "echo $WORD $WORKER; echo wrong >&2; exit $WORKER", environment="export WORD=said\n"
    )
    assert [each.value.status for each in results if each.value] == [0, 1, 2]
    assert client.heard[2, "stdout"] == b"said 2\n"
    assert client.heard[2, "stderr"] == b"wrong\n"
    assert results[2].value
    assert (results[2].value.stdout, results[2].value.stderr) == (b"said 2\n", b"wrong\n")


def test_much_output_passes_whole_and_its_end_is_kept(client: Client) -> None:
    results = client.run("head -c 5000000 /dev/zero | tr '\\0' x", client.workers[:1], keep=1000)
    assert len(client.heard[0, "stdout"]) == 5_000_000
    assert texts(results) == ["x" * 1000]


def test_the_keeper_knows_the_workers_while_it_is_connected_to_one(
    client: Client, crew: list[Server]
) -> None:
    assert known_workers(client.home, client.request) is None
    client.run("true", client.workers[:1])
    assert known_workers(client.home, client.request) == [
        ("demo", each.target) for each in client.workers
    ]
    assert known_workers(client.home, Request("elsewhere", client.request.key)) is None
    for server in crew:
        server.cut()
    crew[0].wait_until(lambda: known_workers(client.home, client.request) is None)


def test_other_host_keys_get_another_connection_or_none(client: Client, crew: list[Server]) -> None:
    client.run("true")
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    impostor = " ".join(other.split()[:2])

    def refused() -> Connection:
        raise HostKeyMismatch("it is not the worker")

    suspect = replace(
        client.workers[0],
        connect=refused,
        target=replace(crew[0].target(impostor), worker=0),
    )
    [result] = client.run("echo ran >ran", [suspect])
    assert isinstance(result.error, HostKeyMismatch)
    assert not (crew[0].home / "ran").exists()


def test_connections_that_broke_meanwhile_are_made_anew(client: Client, crew: list[Server]) -> None:
    client.run("true")
    for server in crew:
        server.cut()
    crew[0].wait_until(lambda: known_workers(client.home, client.request) is None)
    assert texts(client.run("echo x >>runs; cat runs")) == ["x\n"] * 3


def test_a_worker_that_the_keeper_cannot_reach_is_reached_the_ordinary_way(
    client: Client, crew: list[Server]
) -> None:
    nowhere = replace(client.workers[1], target=replace(crew[1].target(), worker=1, port=1))
    results = client.run("echo x >>runs; cat runs", [client.workers[0], nowhere])
    assert texts(results) == ["x\n", "x\n"]
    assert [each.item.index for each in results] == [0, 1]


def test_a_worker_that_is_gone_by_now_is_named_by_the_ordinary_way(
    client: Client, crew: list[Server]
) -> None:
    def gone() -> Connection:
        raise NotFound("there is no such slice")

    client.run("true")
    crew[1].close()
    lost = replace(client.workers[1], connect=gone)
    results = client.run("echo here", [client.workers[0], lost])
    crew[1] = Server(crew[1].home)  # for the fixture to close
    assert texts(results) == ["here\n", "there is no such slice"]


def test_commands_at_the_same_time_do_not_wait_for_each_other(
    client: Client, crew: list[Server]
) -> None:
    waiting = threading.Thread(
        target=client.run, args=("while [ ! -e go ]; do sleep 0.02; done", client.workers[:1])
    )
    waiting.start()
    crew[0].wait_until(lambda: bool(crew[0].commands))
    client.run("touch go", client.workers[:1])
    waiting.join(120)
    assert not waiting.is_alive()


def test_a_lost_keeper_is_a_command_that_may_have_run(client: Client, crew: list[Server]) -> None:
    client.run("true")
    keeper = client.keeper.pid
    crew[0].on_command = lambda: os.kill(keeper, signal.SIGKILL)
    going = client.start("echo x >>runs; sleep 100")
    [result] = going.on_all(client.workers[:1])
    assert isinstance(result.error, TransportFailed)
    assert "may have run" in result.error.why
    assert [each.index for each in going.unreached] == [0]
    crew[0].on_command = lambda: None
    assert texts(client.run("true", client.workers[:1])) == [""]
    assert sum("runs; sleep" in command for command in crew[0].commands) == 1


def test_a_client_that_goes_takes_its_command_s_connections_with_it(
    client: Client, crew: list[Server]
) -> None:
    going = client.start("echo $$ >pid; exec sleep 1000")
    crew[0].on_command = lambda: going._line and going._line.close()
    [result] = going.on_all(client.workers[:1])
    assert isinstance(result.error, TransportFailed)
    crew[0].wait_until(lambda: not (kept.overview(client.home) or {})["connections"])


def test_an_interrupt_ends_the_command_on_every_worker(client: Client, crew: list[Server]) -> None:
    going = client.start("echo $$ >pid; sleep 1000")

    def interrupt() -> None:
        pids = [server.home / "pid" for server in crew]
        try:
            crew[0].wait_until(lambda: all(each.exists() and each.read_text() for each in pids))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        going.on_all(client.workers)
    assert not going.unreached
    pids = [int((server.home / "pid").read_text()) for server in crew]
    crew[0].wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_command_that_takes_too_long_is_ended(client: Client) -> None:
    [result] = client.run("echo $$ >pid; sleep 1000", client.workers[:1], limit=1.0)
    assert result.error
    assert result.error.why == "it was ended"


def test_nothing_more_is_started_for_a_client_that_has_gone(
    client: Client, crew: list[Server]
) -> None:
    client.run("true")
    going = client.start("echo x >ran", at_once=1)
    crew[0].on_command = lambda: going._line and going._line.close()
    going.on_all(client.workers)
    crew[0].wait_until(lambda: not any(each["busy"] for each in client.connections))
    assert not any((server.home / "ran").exists() for server in crew[1:])


def test_a_keeper_that_does_not_answer_is_given_up(client: Client) -> None:
    client.run("true")
    stuck = client.keeper
    stuck.suspend()
    try:
        with pytest.raises(TpukitError, match="does not end"):
            kept.stop(client.home)
        assert texts(client.run("echo again", client.workers[:1])) == ["again\n"]
        assert client.keeper.pid != stuck.pid
    finally:
        stuck.kill()


def test_the_folder_of_the_socket_is_tightened(client: Client, tmp_path: Path) -> None:
    client.run("true")
    (tmp_path / "k").chmod(0o777)
    client.run("true")
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o700


def test_only_its_owner_may_open_the_socket(client: Client, tmp_path: Path) -> None:
    client.run("true")
    folder = tmp_path / "k"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "keeper").stat().st_mode) == 0o600


@pytest.mark.parametrize("ask", ["workers", "run"])
def test_another_version_is_refused_before_anything_runs(client: Client, ask: str) -> None:
    client.run("true")
    line = client.home.line()
    line.tell(ask=ask, version="0.0.0")
    answer = line.hear(60)
    line.close()
    assert answer["error"]["kind"] == BadInput.__name__
    assert answer["error"]["fix"] == "tpukit connections stop"


def test_many_starters_make_one_keeper(tmp_path: Path) -> None:
    homes = [KeeperHome(tmp_path / "k") for _ in range(8)]
    lines = [outcome.value for outcome in fan_out(homes, KeeperHome.line)]
    told = []
    for line in lines:
        assert line
        line.tell(ask="list")
        told.append(line.hear(60)["process"])
        line.close()
    assert kept.stop(homes[0])
    assert len(set(told)) == 1


def test_a_keeper_that_nobody_needs_ends(client: Client, tmp_path: Path) -> None:
    client.home = KeeperHome(tmp_path / "brief", idle_seconds=3)
    client.run("true")
    client.keeper.wait(60)
    assert client.home.found() is None
    assert kept.overview(client.home) is None


def test_stop_ends_the_process_and_its_connections(client: Client) -> None:
    client.run("true")
    keeper = client.keeper
    assert kept.stop(client.home)
    keeper.wait(60)
    assert not kept.stop(client.home)


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="too long"):
        KeeperHome(tmp_path / ("x" * 120)).line()


@pytest.mark.parametrize("message", [b"{nonsense", b"[]", b'{"ask": "what"}', b'{"ask": "run"}'])
def test_an_unreadable_request_ends_its_line_alone(client: Client, message: bytes) -> None:
    client.run("true")
    line = client.home.line()
    line._send(b"j", message)
    with pytest.raises(Gone):
        line.hear(60)
    assert texts(client.run("echo still", client.workers[:1])) == ["still\n"]
