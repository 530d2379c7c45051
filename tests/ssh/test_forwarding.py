"""Tunnels over a real SSH server: bytes both ways, kept over losses, loopback alone."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest
from paramiko import Message
from paramiko.common import cMSG_CHANNEL_WINDOW_ADJUST
from support.openssh_server import UbuntuServer
from support.ssh_server import Server

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import BadInput, Fix, TransportFailed
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.dial import in_thread
from tpukit.ssh.forwarding import Forward, Tunnels, splice
from tpukit.ssh.keys import KeyPair

pytestmark = pytest.mark.process


class Echo:
    """A service on the worker's loopback that sends back what it got, after the end of it."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # it was closed, or there are too many files
                self._closed.wait(0.05)
                continue
            threading.Thread(target=self._answer, args=(accepted,), daemon=True).start()

    @staticmethod
    def _answer(accepted: socket.socket) -> None:
        with accepted:
            got = b""
            while data := accepted.recv(1 << 16):
                got += data
            accepted.sendall(b"echo " + got)

    def close(self) -> None:
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    service = Echo()
    yield service
    service.close()


@pytest.fixture
def connect(connector: Connector, server: Server) -> Callable[[], Connection]:
    server.tunnels = True
    clock = SystemClock()
    return lambda: connector.connect(server.target(), Deadline.after(clock, 60))


@contextmanager
def kept(
    connect: Callable[[], Connection], *forwards: Forward
) -> Iterator[tuple[list[int], list[str]]]:
    """Lead connections; yield the ports that listen, and what is told."""
    told: list[str] = []
    with Tunnels(connect, forwards, SystemClock(), told.append) as tunnels:
        ports = [each.listen for each in tunnels.open()]
        thread = threading.Thread(target=tunnels.keep, daemon=True)
        thread.start()
        yield ports, told
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def openssh(connector: Connector, ubuntu: UbuntuServer) -> Callable[[], Connection]:
    """Connect to OpenSSH's own server."""
    clock = SystemClock()
    return lambda: connector.connect(ubuntu.target(), Deadline.after(clock, 60))


def ask(port: int, question: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(question)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


@pytest.mark.parametrize(
    ("text", "forward"),
    [
        ("6006", Forward(6006, 6006)),
        ("8888:8889", Forward(8888, 8889)),
        ("0:22", Forward(0, 22)),
        ("db.internal:5432", Forward(5432, 5432, "db.internal")),
        ("0:10.128.0.7:80", Forward(0, 80, "10.128.0.7")),
        ("8080:[fd00::7]:80", Forward(8080, 80, "fd00::7")),
    ],
)
def test_what_is_forwarded_can_be_written_and_read(text: str, forward: Forward) -> None:
    assert Forward.parse(text) == forward
    assert Forward.parse(str(forward)) == forward


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "x", "1:2:3", "70000", "1:0", "-1", "1:\n2", "٣"),
        *("a b:80", "1:-oX:80", "1:[x]:80", "1:h:0", "h:70000", "9000:/run/app.sock", "1:h"),
    ],
)
def test_what_is_no_port_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput):
        Forward.parse(text)


def test_bytes_go_both_ways_on_several_connections_at_once(
    connect: Callable[[], Connection], echo: Echo
) -> None:
    with kept(connect, Forward(0, echo.port)) as ([port], _):
        large = bytes(range(256)) * 8192
        answers: dict[int, bytes] = {}
        threads = [
            threading.Thread(target=lambda i=i: answers.update({i: ask(port, large + b"%d" % i)}))
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == {i: b"echo " + large + b"%d" % i for i in range(4)}


def test_a_reader_that_comes_late_breaks_no_other_channel(
    connect: Callable[[], Connection], echo: Echo, server: Server
) -> None:
    """paramiko's threads may tell of a larger window just after they have sent the close."""
    deadline = Deadline.after(SystemClock(), 60)
    with connect() as connection:
        channel = connection.dial(("127.0.0.1", echo.port), deadline)
        channel.shutdown_write()
        server.wait_until(lambda: channel.closed)
        late = Message()
        late.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
        late.add_int(channel.remote_chanid)
        late.add_int(1)
        channel.transport._send_user_message(late)
        assert connection.run("echo on", deadline=deadline).stdout == b"on\n"


def test_a_part_of_an_answer_does_not_look_like_all_of_it(
    connect: Callable[[], Connection], server: Server
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.settimeout(60)
        with (
            kept(connect, Forward(0, service.getsockname()[1])) as ([port], _),
            socket.create_connection(("127.0.0.1", port), timeout=60) as client,
            service.accept()[0] as accepted,
        ):
            accepted.sendall(b"half")
            assert client.recv(100) == b"half"
            server.cut()
            with pytest.raises(ConnectionResetError):
                client.recv(100)


def test_a_lost_connection_is_made_again(
    connect: Callable[[], Connection], echo: Echo, server: Server
) -> None:
    with kept(connect, Forward(0, echo.port)) as ([port], told):
        assert ask(port, b"before") == b"echo before"
        server.cut()
        server.wait_until(lambda: "connected again" in told)
        assert ask(port, b"after") == b"echo after"
        assert told[0] == "the connection is lost; connecting again"


def test_who_comes_while_the_connection_is_lost_waits_for_the_next_one(
    connect: Callable[[], Connection], echo: Echo, server: Server
) -> None:
    free = threading.Event()
    free.set()

    def when_free() -> Connection:
        free.wait(60)
        return connect()

    with kept(when_free, Forward(0, echo.port)) as ([port], told):
        free.clear()
        server.cut()
        server.wait_until(lambda: bool(told))
        threading.Timer(0.5, free.set).start()
        assert ask(port, b"later") == b"echo later"


def test_why_it_cannot_connect_again_is_said_once(
    connect: Callable[[], Connection], server: Server
) -> None:
    causes = ["", "timed out", "refused", "refused"]

    def sometimes() -> Connection:
        cause = causes.pop(0) if causes else ""
        if cause:
            raise TransportFailed("nobody answers", reason=cause)
        return connect()

    with kept(sometimes, Forward(0, 22)) as (_, told):
        server.cut()
        server.wait_until(lambda: "connected again" in told)
    assert told[1:-1] == ["nobody answers (timed out)", "nobody answers (refused)"]


def test_a_service_that_is_not_there_ends_the_callers_connection_and_nothing_else(
    connect: Callable[[], Connection], echo: Echo
) -> None:
    with socket.socket() as silent:  # it keeps its port, and does not listen there
        silent.bind(("127.0.0.1", 0))
        nobody = silent.getsockname()[1]
        with kept(connect, Forward(0, nobody), Forward(0, echo.port)) as (ports, told):
            with pytest.raises(ConnectionResetError):  # not an empty answer
                ask(ports[0], b"")
            assert ask(ports[1], b"x") == b"echo x"
            assert f"does not connect to 127.0.0.1:{nobody}" in told[0]


@pytest.mark.parametrize(
    ("listens", "allowed", "reason"),
    [
        (False, True, "nothing answers there"),
        (True, False, "the worker does not allow it"),
        (True, True, "no answer came in time"),
    ],
)
def test_an_error_says_why_a_worker_does_not_connect(
    connect: Callable[[], Connection], server: Server, listens: bool, allowed: bool, reason: str
) -> None:
    server.tunnels = allowed
    with socket.socket() as service, ExitStack() as callers, connect() as connection:
        service.bind(("127.0.0.1", 0))
        if listens:
            service.listen(0)
            callers.enter_context(socket.create_connection(service.getsockname()))  # it is full now
        with pytest.raises(TransportFailed) as refused:
            connection.dial(service.getsockname(), Deadline.after(SystemClock(), 0.3))
        assert refused.value.reason == reason


def test_only_this_machine_can_connect(connect: Callable[[], Connection], echo: Echo) -> None:
    with kept(connect, Forward(0, echo.port)) as ([port], _):
        listening = [connection.laddr for connection in psutil.Process().net_connections("tcp")]
        assert [each.ip for each in listening if each.port == port] == ["127.0.0.1"]


def test_a_taken_port_is_named_and_leaves_no_other_open(
    connect: Callable[[], Connection], echo: Echo
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    forwards = [Forward(port, 1), Forward(echo.port, 1)]
    with (
        Tunnels(
            connect, forwards, SystemClock(), instead=lambda taken: Fix(note=f"not {taken}")
        ) as tunnels,
        pytest.raises(BadInput, match=f"port {echo.port} of this machine") as refused,
    ):
        tunnels.open()
    assert refused.value.fix == Fix(note=f"not {echo.port}:1")
    socket.create_server(("127.0.0.1", port)).close()


def test_a_first_connection_that_fails_is_the_callers_error() -> None:
    def refuse() -> Connection:
        raise TransportFailed("nobody answers")

    with (
        Tunnels(refuse, [Forward(0, 1)], SystemClock()) as tunnels,
        pytest.raises(TransportFailed, match="nobody answers"),
    ):
        tunnels.open()


def test_a_connection_that_is_made_after_the_end_is_closed(
    connect: Callable[[], Connection],
) -> None:
    made: list[Connection] = []

    def connect_late() -> Connection:
        tunnels.close()
        made.append(connect())
        return made[0]

    tunnels = Tunnels(connect_late, [], SystemClock())
    tunnels.open()
    assert not made[0].alive


def test_another_host_is_reached_as_the_worker_sees_it(
    openssh: Callable[[], Connection], ubuntu: UbuntuServer, echo: Echo
) -> None:
    forwards = (Forward(0, ubuntu.port, ubuntu.address), Forward(0, echo.port))
    with kept(openssh, *forwards) as (ports, _):
        assert ask(ports[0], b"").startswith(b"SSH-2.0-")
        assert ask(ports[1], b"x") == b"echo x"


def test_too_many_open_files_are_said_once_and_pass(
    openssh: Callable[[], Connection], echo: Echo, ubuntu: UbuntuServer
) -> None:
    """The first connection is still taken: the file that it gets was there when the wait began.

    And one more for each file that something else closes meanwhile: the last of several waits.
    """
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        kept(openssh, Forward(0, echo.port)) as ([port], told),
        ExitStack() as opened,
    ):
        clients = [opened.enter_context(socket.socket()) for _ in range(8)]
        free = os.dup(0)
        os.close(free)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
            for client in clients:
                client.connect(("127.0.0.1", port))
            ubuntu.wait_until(lambda: bool(told))
            threading.Event().wait(1.2)  # more than two looks, at each of which it is still so
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        clients[-1].settimeout(60)
        clients[-1].sendall(b"later")
        clients[-1].shutdown(socket.SHUT_WR)
        assert clients[-1].recv(100) == b"echo later"
        assert ask(port, b"and on") == b"echo and on"
        assert told == ["connections wait: Too many open files"]


def test_a_worker_that_fell_silent_as_in_a_sleep_is_reached_again(
    key: KeyPair, ubuntu: UbuntuServer, echo: Echo
) -> None:
    with Connector(key, SystemClock(), silence_seconds=1.0) as connector:

        def connect() -> Connection:
            return connector.connect(ubuntu.target(), Deadline.after(SystemClock(), 60))

        with kept(connect, Forward(0, echo.port)) as ([port], told):
            with ubuntu.stalled():
                ubuntu.wait_until(lambda: bool(told))
            ubuntu.wait_until(lambda: "connected again" in told)
            assert ask(port, b"on") == b"echo on"
            assert told[0] == "the connection is lost; connecting again"


def test_an_idle_caller_is_not_waited_for_once_the_connection_is_lost(
    connect: Callable[[], Connection], echo: Echo
) -> None:
    near, far = socket.socketpair()
    with near, connect() as connection:
        deadline = Deadline.after(SystemClock(), 60)
        leading = in_thread(splice, far, connection.dial(("127.0.0.1", echo.port), deadline))
        connection.close()
        assert near.recv(1) == b""
        leading.join(20)
        assert not leading.is_alive()


def test_who_breaks_off_here_is_gone_for_the_worker_too(openssh: Callable[[], Connection]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.settimeout(60)
        with kept(openssh, Forward(0, service.getsockname()[1])) as ([port], _):
            client = socket.create_connection(("127.0.0.1", port), timeout=60)
            accepted, _ = service.accept()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()  # without a word of an end
            accepted.settimeout(20)
            assert accepted.recv(1) == b""
            accepted.close()
