"""Ports of this machine that are forwarded to a worker, over as many connections as it takes."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tpukit.clock import Clock, Deadline
from tpukit.errors import BadInput, Fix, TpukitError, TransportFailed
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.dial import in_thread, splice
from tpukit.text import one_line

_LOOPBACK = "127.0.0.1"
#: Seconds between looks at the connection, and for which a caller waits for a new one.
_POLL_SECONDS, _WAIT_SECONDS = 0.5, 20.0


@dataclass(frozen=True)
class Forward:
    """A port here, or 0 for a free one, and the port on the worker's own loopback."""

    local: int
    remote: int

    @classmethod
    def parse(cls, text: str) -> Forward:
        """Return what `6006` or `8888:8889` (here:there) means; raise `BadInput` for no port."""
        found = re.fullmatch(r"(?:(\d{1,5}):)?(\d{1,5})", text, re.ASCII)
        if not found:
            raise BadInput(
                f"{one_line(text)!r} is no port", fix=Fix(note="6006, or 8888:8889 (here:there)")
            )
        local, remote = int(found[1] or found[2]), int(found[2])
        if not (local < 1 << 16 and 0 < remote < 1 << 16):
            raise BadInput(f"{one_line(text)!r} is no port", why="ports go from 1 to 65535")
        return cls(local, remote)


class Tunnels(AbstractContextManager["Tunnels"]):
    """Listens on the loopback here, and forwards each connection to the worker's loopback."""

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
        """Forward connections until `close`, connecting again as often as the connection is lost.

        Raises what the first connection raises; later ones are tried for without an end.
        """
        for listener, remote in self._listeners:
            in_thread(self._accept, listener, remote)
        self._use(self._connect())
        while not self._ended.wait(_POLL_SECONDS):
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
                in_thread(self._forward, accepted, remote)

    def _forward(self, accepted: socket.socket, remote: int) -> None:
        with accepted:
            if not self._connected.wait(_WAIT_SECONDS) or self._connection is None:
                return
            try:
                deadline = Deadline.after(self._clock, _WAIT_SECONDS)
                channel = self._connection.dial(_LOOPBACK, remote, deadline)
            except TpukitError as error:
                self._on_change(error.summary())
                return
            splice(accepted, channel)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((_LOOPBACK, port))
    except OSError as error:
        raise BadInput(
            f"port {port} of this machine cannot be used",
            reason=error.strerror or "",
            fix=Fix(note=f"take another one here: {port + 1}:{port}"),
        ) from error
