"""Connections through a worker: forwarded ports, and a route to other workers.

Both reconnect after a loss.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tpukit.clock import Clock, Deadline
from tpukit.errors import BadInput, Fix, TpukitError, TransportFailed
from tpukit.ssh.client import Connection
from tpukit.ssh.dial import ACCEPT_SECONDS, LOOPBACK, Dial, in_thread
from tpukit.ssh.handshake import seconds
from tpukit.ssh.target import Target
from tpukit.text import one_line

_CHUNK = 1 << 16
#: Seconds between checks of the connection, and seconds that a caller waits for a new one.
_POLL_SECONDS, _WAIT_SECONDS = 0.5, 20.0
#: The local port, the host and its port; a host of digits only would be a port.
_FORWARD = re.compile(
    r"(?:(\d{1,5}):)?(?:((?=\d*[A-Za-z.])[A-Za-z0-9][\w.-]*|\[[0-9A-Fa-f:.]+\]):)?(\d{1,5})",
    re.ASCII,
)


@dataclass(frozen=True)
class Forward:
    """A local loopback port (0 for a free one), and the address to which the worker connects."""

    listen: int
    port: int
    host: str = LOOPBACK

    @classmethod
    def parse(cls, text: str) -> Forward:
        """Return the forward for `6006`, `8888:8889` (here:there) or `8080:db:80`.

        Raises `BadInput` for anything else.
        """
        match = _FORWARD.fullmatch(text)
        if not match:
            fix = Fix(note="6006, or 8888:8889 (here:there)")
            raise BadInput(f"{one_line(text)!r} is not a port", fix=fix)
        listen, host, port = match.groups(default="")
        here, there = int(listen or port), int(port)
        if not (here < 1 << 16 and 0 < there < 1 << 16):
            raise BadInput(f"{one_line(text)!r} is not a port", why="ports go from 1 to 65535")
        return cls(here, there, host.strip("[]") or LOOPBACK)

    @property
    def to(self) -> str:
        """The address to which it leads."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        """Return the text for `parse`."""
        return f"{self.listen}:{self.port if self.host == LOOPBACK else self.to}"


@dataclass(eq=False)
class Tunnels(AbstractContextManager["Tunnels"]):
    """Listens on local ports, and forwards each connection through the worker.

    `instead` returns the remedy if a local port is taken.
    """

    connect: Callable[[], Connection]
    forwards: Sequence[Forward]
    clock: Clock
    on_change: Callable[[str], None] = lambda line: None
    instead: Callable[[Forward], Fix | None] = lambda taken: None

    def __post_init__(self) -> None:
        self._connection: Connection | None = None
        self._connected = threading.Event()
        self._ended = threading.Event()
        self._listeners: list[tuple[socket.socket, Forward]] = []
        self._told = ""

    def open(self) -> list[Forward]:
        """Listen and connect; return the forwards with their actual ports.

        Raises `BadInput` if a local port is taken, and the errors of `connect`.
        """
        for forward in self.forwards:
            self._listeners.append((self._listening(forward), forward))
        self._use(self.connect())
        for listener, forward in self._listeners:
            in_thread(self._accept, listener, forward)
        return [
            replace(forward, listen=listener.getsockname()[1])
            for listener, forward in self._listeners
        ]

    def keep(self) -> None:
        """Forward connections until `close`; reconnect after each loss.

        It retries a `TransportFailed` without limit, and raises any other error of `connect`.
        """
        while not self._ended.wait(_POLL_SECONDS):
            if self._connection is None or self._connection.alive:
                continue
            if self._connected.is_set():
                self._connected.clear()
                self._connection.close()
                self._tell_once("the connection is lost; connecting again")
            try:
                self._use(self.connect())
                self._tell_once("connected again")
            except TransportFailed as error:
                self._tell_once(error.summary())

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
        if self._ended.is_set():
            connection.close()

    def _tell_once(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self.on_change(line)

    def _listening(self, forward: Forward) -> socket.socket:
        try:
            return socket.create_server((LOOPBACK, forward.listen))
        except OSError as error:
            raise BadInput(
                f"port {forward.listen} of this machine cannot be used",
                reason=error.strerror or "",
                fix=self.instead(forward),
            ) from error

    def _accept(self, listener: socket.socket, forward: Forward) -> None:
        """Accept connections until `close`; go on after a lack of files or threads."""
        while not self._ended.is_set():
            try:
                accepted, _ = listener.accept()
                in_thread(self._lead, accepted, forward)
            except (OSError, RuntimeError) as error:
                if not self._ended.wait(_POLL_SECONDS):
                    self._tell_once(f"connections wait: {getattr(error, 'strerror', '') or error}")

    def _lead(self, accepted: socket.socket, forward: Forward) -> None:
        with accepted:
            _reset_at_close(accepted, True)  # no answer must not look like an empty one
            if not self._connected.wait(_WAIT_SECONDS) or self._connection is None:
                return
            limit = Deadline.after(self.clock, _WAIT_SECONDS)
            try:
                stream = self._connection.dial((forward.host, forward.port), limit)
            except TpukitError as error:
                self.on_change(error.summary())
                return
            _reset_at_close(accepted, False)
            splice(accepted, stream)


def through_worker(connect: Callable[[], Connection]) -> Dial:
    """Return a dial that goes through another worker; all dials share one connection to it.

    Dials during a connection attempt wait for the same attempt, and raise its error.
    """
    lock = threading.Lock()
    shared: list[Future[Connection]] = []

    def make(attempt: Future[Connection]) -> None:
        try:
            attempt.set_result(connect())
        except BaseException as error:  # noqa: BLE001  the waiting dials raise it
            attempt.set_exception(error)

    def current() -> Future[Connection]:
        with lock:
            if not shared or (shared[0].done() and not _leads(shared[0])):
                shared[:] = [Future()]
                in_thread(make, shared[0])
            return shared[0]

    def dial(target: Target, deadline: Deadline) -> socket.socket:
        try:
            jump = current().result(seconds(deadline))
        except TimeoutError as error:
            reason = "the worker that leads there has not answered yet"
            raise TransportFailed(f"{target.label} is not reached", reason=reason) from error
        channel = jump.dial((target.address, target.port), deadline.within(ACCEPT_SECONDS))
        near, far = socket.socketpair()
        in_thread(splice, far, channel)
        return near

    return dial


def _leads(attempt: Future[Connection]) -> bool:
    return not attempt.exception() and attempt.result().alive


def splice(local: socket.socket, channel: Any) -> None:
    """Copy between a socket and a channel until both directions have ended; close both.

    If the channel breaks off, so does the socket: a part of an answer must not look like all of it.
    """
    back = in_thread(_copy_back, channel, local)
    with contextlib.suppress(OSError, EOFError):
        while data := local.recv(_CHUNK):
            channel.sendall(data)
    # Even after an abort on this side, because the server there would wait for the rest.
    for last in (channel.shutdown_write, back.join, channel.close):
        with contextlib.suppress(OSError, EOFError):  # the connection may be gone
            last()
    local.close()


def _copy_back(channel: Any, local: socket.socket) -> None:
    end = socket.SHUT_RD
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(_CHUNK):
            local.sendall(data)
        if channel.eof_received:
            # A closed channel does not read any more either.
            end = socket.SHUT_RDWR if channel.closed else socket.SHUT_WR
    with contextlib.suppress(OSError):
        if end == socket.SHUT_RD:
            _reset_at_close(local, True)
        local.shutdown(end)


def _reset_at_close(connected: socket.socket, is_reset: bool) -> None:
    """Let the other side see a reset when the socket is closed, or a normal end: socket(7)."""
    with contextlib.suppress(OSError):  # macOS refuses it after the other side has gone
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", is_reset, 0))
