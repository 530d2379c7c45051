"""Tunnels over a real SSH server: bytes both ways, kept over losses, loopback alone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.ssh_server import Server

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import BadInput, TransportFailed
from tpukit.remote.connection.client import Connection, Connector
from tpukit.remote.connection.forwarding import Forward, Tunnels


class Echo:
    """A service on the worker's loopback that sends back what it got, after the end of it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(accepted,), daemon=True).start()

    @staticmethod
    def _answer(accepted: socket.socket) -> None:
        with accepted:
            got = b""
            while data := accepted.recv(1 << 16):
                got += data
            accepted.sendall(b"echo " + got)

    def close(self) -> None:
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
) -> Iterator[tuple[Tunnels, list[str]]]:
    told: list[str] = []
    with Tunnels(connect, forwards, SystemClock(), told.append) as tunnels:
        thread = threading.Thread(target=tunnels.keep, daemon=True)
        thread.start()
        yield tunnels, told
    thread.join(60)
    assert not thread.is_alive()


def ask(port: int, question: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(question)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_a_port_means_here_and_there() -> None:
    for text, local, remote in [("6006", 6006, 6006), ("8888:8889", 8888, 8889), ("0:22", 0, 22)]:
        assert Forward.parse(text) == Forward(local, remote)


def test_what_is_no_port_is_bad_input() -> None:
    for text in ["", "0", "x", "1:2:3", "70000", "1:0", "-1", "1:\n2", "٣"]:
        with pytest.raises(BadInput):
            Forward.parse(text)


def test_bytes_go_both_ways_on_several_connections_at_once(
    connect: Callable[[], Connection], echo: Echo
) -> None:
    with kept(connect, Forward(0, echo.port)) as (tunnels, _):
        port = tunnels.forwards[0].local
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


def test_a_lost_connection_is_made_again(
    connect: Callable[[], Connection], echo: Echo, server: Server
) -> None:
    with kept(connect, Forward(0, echo.port)) as (tunnels, told):
        port = tunnels.forwards[0].local
        assert ask(port, b"before") == b"echo before"
        server.cut()
        server.wait_until(lambda: "connected again" in told)
        assert ask(port, b"after") == b"echo after"
        assert told[0] == "the connection is lost; connecting again"


def test_a_service_that_is_not_there_ends_the_callers_connection_and_nothing_else(
    connect: Callable[[], Connection], echo: Echo
) -> None:
    with socket.socket() as silent:  # it keeps its port, and does not listen there
        silent.bind(("127.0.0.1", 0))
        nobody = silent.getsockname()[1]
        with kept(connect, Forward(0, nobody), Forward(0, echo.port)) as (tunnels, told):
            assert ask(tunnels.forwards[0].local, b"") == b""
            assert ask(tunnels.forwards[1].local, b"x") == b"echo x"
            assert f"does not connect to 127.0.0.1:{nobody}" in told[0]


def test_only_this_machine_can_connect(connect: Callable[[], Connection], echo: Echo) -> None:
    with kept(connect, Forward(0, echo.port)) as (tunnels, _):
        (listener,) = [each for each, _ in tunnels._listeners]
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_taken_port_is_named_and_leaves_no_other_open(
    connect: Callable[[], Connection], echo: Echo
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(BadInput, match=f"port {echo.port} of this machine"):
        Tunnels(connect, [Forward(port, 1), Forward(echo.port, 1)], SystemClock())
    socket.create_server(("127.0.0.1", port)).close()


def test_a_first_connection_that_fails_is_the_callers_error() -> None:
    def refuse() -> Connection:
        raise TransportFailed("nobody answers")

    with (
        Tunnels(refuse, [Forward(0, 1)], SystemClock()) as tunnels,
        pytest.raises(TransportFailed, match="nobody answers"),
    ):
        tunnels.keep()
