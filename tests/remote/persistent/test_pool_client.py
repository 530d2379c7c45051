"""Connections that a process of their own keeps open between commands."""

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
from support.ssh_fixtures import Within
from support.ssh_server import Server

from tpukit.clock import SystemClock
from tpukit.errors import BadInput, HostKeyMismatch, NotFound, TpukitError, TransportFailed
from tpukit.remote.command.attached import CommandOutcome, CommandRequest
from tpukit.remote.command.fan_out import fan_out
from tpukit.remote.connection.client import Connection, Connector
from tpukit.remote.connection.keys import KeyPair
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.persistent import pool_client
from tpukit.remote.persistent.pool_client import PooledRun, PoolRequest, known_workers
from tpukit.remote.persistent.pool_socket import Disconnected, PoolSocket

pytestmark = pytest.mark.process


@dataclass
class Client:
    """Commands as a tpukit of its own would run them, with a pool that may be there."""

    pool: PoolSocket
    request: PoolRequest
    workers: list[RemoteWorker]
    output: dict[tuple[int, str], bytes] = field(default_factory=lambda: defaultdict(bytes))

    def run(
        self, command: str, workers: Sequence[RemoteWorker] = (), **how: object
    ) -> list[CommandOutcome]:
        return self.start(command, **how).on_all(workers or self.workers)

    def start(self, command: str, **how: object) -> PooledRun:
        request = CommandRequest(command, **how)  # type: ignore[arg-type]
        return PooledRun(
            request, SystemClock(), self.on_output, self.pool, self.request, self.workers
        )

    def on_output(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        self.output[worker.index, stream] += chunk

    @property
    def connections(self) -> list[dict[str, Any]]:
        found = pool_client.overview(self.pool)
        return found["connections"] if found else []

    @property
    def process(self) -> psutil.Process:
        found = pool_client.overview(self.pool)
        assert found
        return psutil.Process(found["process"])


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolSocket]:
    pool = PoolSocket(tmp_path / "k")
    yield pool
    pool_client.stop(pool)


@pytest.fixture
def client(
    pool: PoolSocket, key: KeyPair, servers: list[Server], connector: Connector, within: Within
) -> Client:
    """A client that knows three workers, and can reach them without the pool too."""

    def direct(server: Server) -> Callable[[], Connection]:
        return lambda: connector.connect(server.target(), within(60))

    workers = [
        RemoteWorker(place, direct(each), "demo", replace(each.target(), worker=place))
        for place, each in enumerate(servers)
    ]
    return Client(pool, PoolRequest("place", key), workers)


def texts(results: Sequence[CommandOutcome]) -> list[str]:
    return [each.value.text if each.value else str(each.error) for each in results]


def made(servers: Sequence[Server]) -> list[int]:
    """How many connections each server has seen."""
    return [len(server.connections) for server in servers]


def test_a_second_command_finds_the_connections_of_the_first(
    client: Client, servers: list[Server]
) -> None:
    assert texts(client.run("echo one $WORKER")) == ["one 0\n", "one 1\n", "one 2\n"]
    assert texts(client.run("echo two $WORKER")) == ["two 0\n", "two 1\n", "two 2\n"]
    assert made(servers) == [1, 1, 1]


def test_a_command_has_its_streams_its_environment_and_its_status(client: Client) -> None:
    results = client.run(
        "echo $WORD $WORKER; echo wrong >&2; exit $WORKER", environment="export WORD=said\n"
    )
    assert [each.value.status for each in results if each.value] == [0, 1, 2]
    assert client.output[2, "stdout"] == b"said 2\n"
    assert client.output[2, "stderr"] == b"wrong\n"
    assert results[2].value
    assert (results[2].value.stdout, results[2].value.stderr) == (b"said 2\n", b"wrong\n")


def test_much_output_passes_whole_and_its_end_is_kept(client: Client) -> None:
    results = client.run("head -c 5000000 /dev/zero | tr '\\0' x", client.workers[:1], keep=1000)
    assert len(client.output[0, "stdout"]) == 5_000_000
    assert texts(results) == ["x" * 1000]


def test_the_pool_knows_the_workers_while_it_is_connected_to_one(
    client: Client, servers: list[Server]
) -> None:
    assert known_workers(client.pool, client.request) is None
    client.run("true", client.workers[:1])
    assert known_workers(client.pool, client.request) == [
        ("demo", each.target) for each in client.workers
    ]
    assert known_workers(client.pool, PoolRequest("elsewhere", client.request.key)) is None
    for server in servers:
        server.cut()
    servers[0].wait_until(lambda: known_workers(client.pool, client.request) is None)


def test_other_host_keys_get_another_connection_or_none(
    client: Client, servers: list[Server]
) -> None:
    client.run("true")
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    impostor = " ".join(other.split()[:2])

    def refused() -> Connection:
        raise HostKeyMismatch("it is not the worker")

    suspect = replace(
        client.workers[0],
        connect=refused,
        target=replace(servers[0].target(impostor), worker=0),
    )
    [result] = client.run("echo ran >ran", [suspect])
    assert isinstance(result.error, HostKeyMismatch)
    assert not (servers[0].home / "ran").exists()


def test_connections_that_broke_meanwhile_are_made_anew(
    client: Client, servers: list[Server]
) -> None:
    client.run("true")
    for server in servers:
        server.cut()
    servers[0].wait_until(lambda: known_workers(client.pool, client.request) is None)
    assert texts(client.run("echo x >>runs; cat runs")) == ["x\n"] * 3


def test_a_worker_that_the_pool_cannot_reach_is_connected_to_directly(
    client: Client, servers: list[Server]
) -> None:
    nowhere = replace(client.workers[1], target=replace(servers[1].target(), worker=1, port=1))
    results = client.run("echo x >>runs; cat runs", [client.workers[0], nowhere])
    assert texts(results) == ["x\n", "x\n"]
    assert [each.item.index for each in results] == [0, 1]


def test_a_worker_that_is_gone_by_now_is_named_by_the_direct_connection(
    client: Client, servers: list[Server]
) -> None:
    def gone() -> Connection:
        raise NotFound("there is no such slice")

    client.run("true")
    servers[1].close()
    lost = replace(client.workers[1], connect=gone)
    results = client.run("echo here", [client.workers[0], lost])
    servers[1] = Server(servers[1].home)  # for the fixture to close
    assert texts(results) == ["here\n", "there is no such slice"]


def test_commands_at_the_same_time_do_not_wait_for_each_other(
    client: Client, servers: list[Server]
) -> None:
    waiting = threading.Thread(
        target=client.run, args=("while [ ! -e go ]; do sleep 0.02; done", client.workers[:1])
    )
    waiting.start()
    servers[0].wait_until(lambda: bool(servers[0].commands))
    client.run("touch go", client.workers[:1])
    waiting.join(120)
    assert not waiting.is_alive()


def test_a_lost_pool_is_a_command_that_may_have_run(client: Client, servers: list[Server]) -> None:
    client.run("true")
    pid = client.process.pid
    servers[0].on_command = lambda: os.kill(pid, signal.SIGKILL)
    going = client.start("echo x >>runs; sleep 100")
    [result] = going.on_all(client.workers[:1])
    assert isinstance(result.error, TransportFailed)
    assert "may have run" in result.error.why
    assert [each.index for each in going.unreached] == [0]
    servers[0].on_command = lambda: None
    assert texts(client.run("true", client.workers[:1])) == [""]
    assert sum("runs; sleep" in command for command in servers[0].commands) == 1


def test_a_client_that_goes_takes_its_command_s_connections_with_it(
    client: Client, servers: list[Server]
) -> None:
    going = client.start("echo $$ >pid; exec sleep 1000")
    servers[0].on_command = lambda: going._connected and going._connected.close()
    [result] = going.on_all(client.workers[:1])
    assert isinstance(result.error, TransportFailed)
    servers[0].wait_until(lambda: not (pool_client.overview(client.pool) or {})["connections"])


def test_an_interrupt_ends_the_command_on_every_worker(
    client: Client, servers: list[Server]
) -> None:
    going = client.start("echo $$ >pid; sleep 1000")

    def interrupt() -> None:
        pids = [server.home / "pid" for server in servers]
        try:
            servers[0].wait_until(lambda: all(each.exists() and each.read_text() for each in pids))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        going.on_all(client.workers)
    assert not going.unreached
    pids = [int((server.home / "pid").read_text()) for server in servers]
    servers[0].wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_command_that_takes_too_long_is_ended(client: Client) -> None:
    [result] = client.run("echo $$ >pid; sleep 1000", client.workers[:1], limit=1.0)
    assert result.error
    assert result.error.why == "it was ended"


def test_nothing_more_is_started_for_a_client_that_has_gone(
    client: Client, servers: list[Server]
) -> None:
    client.run("true")
    going = client.start("echo x >ran", at_once=1)
    servers[0].on_command = lambda: going._connected and going._connected.close()
    going.on_all(client.workers)
    servers[0].wait_until(lambda: not any(each["busy"] for each in client.connections))
    assert not any((server.home / "ran").exists() for server in servers[1:])


def test_a_pool_that_does_not_answer_is_given_up(client: Client, tmp_path: Path) -> None:
    client.run("true")
    stuck = client.process
    stuck.suspend()
    try:
        impatient = PoolSocket(tmp_path / "k", answer_seconds=0.2)
        with pytest.raises(TpukitError, match="does not answer"):
            pool_client.overview(impatient)
        with pytest.raises(TpukitError, match="does not end"):
            pool_client.stop(impatient)
        assert texts(client.run("echo again", client.workers[:1])) == ["again\n"]
        assert client.process.pid != stuck.pid
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
    assert stat.S_IMODE((folder / "pool").stat().st_mode) == 0o600


def test_another_version_is_refused_before_anything_runs(client: Client) -> None:
    for kind in ["workers", "run"]:
        client.run("true")
        connected = client.pool.connect()
        connected.send(request=kind, version="0.0.0")
        answer = connected.receive_document(60)
        connected.close()
        assert answer["error"]["kind"] == BadInput.__name__
        assert answer["error"]["fix"] == "tpukit connections stop"


def test_many_starters_make_one_pool(tmp_path: Path) -> None:
    pools = [PoolSocket(tmp_path / "k") for _ in range(8)]
    processes = set()
    for outcome in fan_out(pools, PoolSocket.connect):
        connected = outcome.value
        assert connected
        connected.send(request="list")
        processes.add(connected.receive_document(60)["process"])
        connected.close()
    assert pool_client.stop(pools[0])
    assert len(processes) == 1


def test_a_pool_that_nobody_needs_ends(client: Client, tmp_path: Path) -> None:
    client.pool = PoolSocket(tmp_path / "brief", idle_seconds=2)
    client.run("true")
    client.process.wait(60)
    assert client.pool.connect_if_running() is None
    assert pool_client.overview(client.pool) is None


def test_stop_ends_the_process_and_its_connections(client: Client) -> None:
    client.run("true")
    process = client.process
    assert pool_client.stop(client.pool)
    process.wait(60)
    assert not pool_client.stop(client.pool)


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="too long"):
        PoolSocket(tmp_path / ("x" * 120)).connect()


def test_an_unreadable_request_ends_its_own_connection_alone(client: Client) -> None:
    client.run("true")
    for message in (b"{nonsense", b"[]", b'{"request": "what"}', b'{"request": "run"}'):
        connected = client.pool.connect()
        connected._send(b"j", message)
        with pytest.raises(Disconnected):
            connected.receive_document(60)
    assert texts(client.run("echo still", client.workers[:1])) == ["still\n"]
