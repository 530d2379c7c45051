"""An interactive session over a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator

import pytest
from support.ssh_server import Server

from tpukit.errors import TransportFailed
from tpukit.remote.connection.client import Connection


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The far and the near end of a terminal of 100 columns and 30 rows."""
    far, near = pty.openpty()
    resize(near, 100, 30)
    yield far, near
    os.close(far)
    os.close(near)


def resize(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(far: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += os.read(far, 4096)
    return seen


class Session(threading.Thread):
    """The near end in use by one shell."""

    def __init__(self, connection: Connection, near: int, command: str) -> None:
        super().__init__(daemon=True)
        self._arguments = connection, near, command
        self.status: int | None = None
        self.error: TransportFailed | None = None
        self.start()

    def run(self) -> None:
        connection, near, command = self._arguments
        try:
            self.status = connection.shell(command, keyboard=near, screen=near)
        except TransportFailed as error:
            self.error = error


def test_keys_go_there_output_comes_back_and_the_status_is_the_shells(
    connection: Connection, terminal: tuple[int, int]
) -> None:
    far, near = terminal
    before = termios.tcgetattr(near)
    session = Session(connection, near, r"echo ready; read word; printf '\033[1m'$word; exit 5")
    read_until(far, b"ready")
    os.write(far, b"hello\n")
    assert b"\x1b[1mhello" in read_until(far, b"hello")
    session.join(60)
    assert session.status == 5
    assert termios.tcgetattr(near) == before


def test_a_new_size_of_the_terminal_is_passed_on(
    connection: Connection, server: Server, terminal: tuple[int, int]
) -> None:
    far, near = terminal
    session = Session(connection, near, "echo ready; read word")
    read_until(far, b"ready")
    resize(near, 120, 40)
    server.wait_until(lambda: server.sizes == [(120, 40)])
    os.write(far, b"\n")
    session.join(60)
    assert session.status == 0


def test_a_lost_connection_gives_the_terminal_back(
    connection: Connection, server: Server, terminal: tuple[int, int]
) -> None:
    far, near = terminal
    before = termios.tcgetattr(near)
    session = Session(connection, near, "echo ready; sleep 1000")
    read_until(far, b"ready")
    server.cut()
    session.join(60)
    assert session.error is not None
    assert session.error.reason == "the connection broke"
    assert termios.tcgetattr(near) == before
