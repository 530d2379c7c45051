"""Ports of this machine that lead to ports of a worker, kept open over losses."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpukit.clock import Clock, Deadline
from tpukit.errors import BadInput, TpukitError, TransportFailed
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.ssh import Connection

_LOOPBACK = "127.0.0.1"
_CHUNK = 1 << 16
#: Seconds between looks at the connection, and for which a caller waits for a new one.
_GLANCE, _PATIENCE = 0.5, 20.0


@dataclass(frozen=True)
class Forward:
    """A port here, or 0 for a free one, and the port on the worker's own loopback."""

    local: int
    remote: int

    @classmethod
    def parse(cls, text: str) -> Forward:
        """Return what `6006` or `8888:8889` (here:there) means."""
        found = re.fullmatch(r"(?:(\d{1,5}):)?(\d{1,5})", text, re.ASCII)
        if not found:
            raise BadInput(f"{one_line(text)!r} is no port", fix="6006, or 8888:8889 (here:there)")
        local, remote = int(found[1] or found[2]), int(found[2])
        if not (local < 1 << 16 and 0 < remote < 1 << 16):
            raise BadInput(f"{one_line(text)!r} is no port", why="ports go from 1 to 65535")
        return cls(local, remote)


class Tunnels:
    """Listens on the loopback here, and leads each connection to the worker's loopback."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        forwards: Sequence[Forward],
        clock: Clock,
        on_change: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Open the ports; raise `BadInput` where one is taken."""
        self._connect = connect
        self._clock = clock
        self._on_change = on_change
        self._connection: Connection | None = None
        self._connected = threading.Event()
        self._ended = threading.Event()
        self._listeners: list[tuple[socket.socket, int]] = []
        try:
            for each in forwards:
                self._listeners.append((_listening(each.local), each.remote))
        except BaseException:
            self.close()
            raise

    @property
    def forwards(self) -> list[Forward]:
        """The ports that are open, with the free ones that were found."""
        return [Forward(each.getsockname()[1], remote) for each, remote in self._listeners]

    def keep(self) -> None:
        """Lead connections until `close`, connecting again as often as the connection is lost.

        Raises what the first connection raises; later ones are tried for without an end.
        """
        for listener, remote in self._listeners:
            _thread(self._accept, listener, remote)
        self._use(self._connect())
        while not self._ended.wait(_GLANCE):
            if self._connection and not self._connection.alive:
                self._reconnect(self._connection)

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._ended.set()
        for listener, _ in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self._connection:
            self._connection.close()

    def __enter__(self) -> Tunnels:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._connected.set()

    def _reconnect(self, lost: Connection) -> None:
        self._connected.clear()
        lost.close()
        self._on_change("the connection is lost; connecting again")
        while not self._ended.is_set():
            try:
                self._use(self._connect())
            except TransportFailed as error:
                self._on_change(error.summary())
            else:
                self._on_change("connected again")
                return

    def _accept(self, listener: socket.socket, remote: int) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                accepted, _ = listener.accept()
                _thread(self._lead, accepted, remote)

    def _lead(self, accepted: socket.socket, remote: int) -> None:
        with accepted:
            if not self._connected.wait(_PATIENCE) or self._connection is None:
                return
            try:
                deadline = Deadline.after(self._clock, _PATIENCE)
                channel = self._connection.dial(_LOOPBACK, remote, deadline)
            except TpukitError as error:
                self._on_change(error.summary())
                return
            splice(accepted, channel)


def splice(local: socket.socket, channel: Any) -> None:
    """Copy between a socket and a channel until both directions have ended; close both."""
    back = _thread(_copy_back, channel, local)
    with contextlib.suppress(OSError, EOFError):
        while data := local.recv(_CHUNK):
            channel.sendall(data)
        channel.shutdown_write()
    back.join()
    channel.close()
    local.close()


def _copy_back(channel: Any, local: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(_CHUNK):
            local.sendall(data)
    # The other end has finished; one that is gone altogether will not read on either.
    with contextlib.suppress(OSError):
        local.shutdown(socket.SHUT_RDWR if channel.closed else socket.SHUT_WR)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((_LOOPBACK, port))
    except OSError as error:
        raise BadInput(
            f"port {port} of this machine cannot be used",
            reason=error.strerror or "",
            fix=f"take another one here: {port + 1}:{port}",
        ) from error


def _thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, name="tpukit-tunnel", daemon=True)
    thread.start()
    return thread
