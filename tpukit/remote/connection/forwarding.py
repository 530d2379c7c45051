"""What leads through a worker: ports, there and back, and the way to other workers.

Over as many connections as it takes.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tpukit.clock import Clock, Deadline
from tpukit.errors import BadInput, Fix, TpukitError, TransportFailed
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.dial import ACCEPT_SECONDS, LOOPBACK, Dial, in_thread
from tpukit.remote.connection.handshake import seconds
from tpukit.remote.connection.target import Target
from tpukit.text import one_line

_CHUNK = 1 << 16
#: Seconds between looks at the connection, and for which a caller waits for a new one.
_POLL_SECONDS, _WAIT_SECONDS = 0.5, 20.0
#: HERE, HOST and THERE, or HERE and a path; a host of digits alone would be a port.
_FORWARD = re.compile(
    r"(?:(\d{1,5}):)?(?:(?:((?=\d*[A-Za-z.])[A-Za-z0-9][\w.-]*|\[[0-9A-Fa-f:.]+\]):)?(\d{1,5})"
    r"|(/[^\x00-\x1f\x7f]+))",
    re.ASCII,
)


@dataclass(frozen=True)
class Forward:
    """A loopback port that listens, 0 for a free one, and what a connection to it leads to.

    It listens here and leads to an address, or a Unix socket, as the worker sees it; in reverse it
    listens on the worker and leads to this machine.
    """

    listen: int
    port: int = 0
    host: str = LOOPBACK
    path: str = ""
    reverse: bool = False

    @classmethod
    def parse(cls, text: str, reverse: bool = False) -> Forward:
        """Return what `6006`, `8888:8889` (here:there), `8080:db:80` or `9000:/a/socket` means.

        In reverse it is ports alone, and there:here. Raises `BadInput` for anything else.
        """
        found = _FORWARD.fullmatch(text)
        listen, host, port, path = found.groups(default="") if found else ("",) * 4
        if not found or (path and not listen) or (reverse and (host or path)):
            form = "9001:9000 (there:here)" if reverse else "8888:8889 (here:there)"
            raise BadInput(f"{one_line(text)!r} is no port", fix=Fix(note=f"6006, or {form}"))
        here, there = int(listen or port), int(port or "1")
        if not (here < 1 << 16 and 0 < there < 1 << 16):
            raise BadInput(f"{one_line(text)!r} is no port", why="ports go from 1 to 65535")
        where = host.strip("[]") or LOOPBACK
        return cls(here, 0 if path else there, where, path, reverse)

    @property
    def to(self) -> str:
        """The address, or the path of the socket, that it leads to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"

    def __str__(self) -> str:
        """Return what `parse` takes."""
        plain = not self.path and self.host == LOOPBACK
        return f"{self.listen}:{self.port if plain else self.to}"


@dataclass(eq=False)
class Tunnels(AbstractContextManager["Tunnels"]):
    """Listens, here and on the worker, and leads each connection to the other side.

    `instead` says what to type where a port here is taken.
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
        self._forwards = list(self.forwards)
        self._listeners: list[tuple[socket.socket, Forward]] = []
        self._told = ""

    def open(self) -> list[Forward]:
        """Listen and connect; return what listens now, with the free ports that were found.

        Raises `BadInput` where a port here is taken, what connecting raises, and `TransportFailed`
        for a port that the worker refuses.
        """
        for place, each in enumerate(self.forwards):
            if not each.reverse:
                listener = self._listening(each)
                self._listeners.append((listener, each))
                self._forwards[place] = replace(each, listen=listener.getsockname()[1])
        self._use(self.connect())
        for listener, each in self._listeners:
            in_thread(self._accept, listener, each)
        return self._forwards

    def keep(self) -> None:
        """Lead connections until `close`, connecting again as often as the connection is lost.

        Tried for without an end, unless it is not for want of an answer: that is raised.
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
        try:
            for place, each in enumerate(self._forwards):
                if each.reverse:
                    # It gets each connection in paramiko's thread, which must not wait.
                    lead = partial(in_thread, self._lead_here)
                    port = connection.listen(each.listen, lead)
                    self._forwards[place] = replace(each, listen=port)
        except TransportFailed:
            connection.close()
            raise
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
        """Take connections until `close`, also after there were too many files or threads."""
        while not self._ended.is_set():
            try:
                accepted, _ = listener.accept()
                in_thread(self._lead, accepted, forward)
            except (OSError, RuntimeError) as error:
                if not self._ended.wait(_POLL_SECONDS):
                    self._tell_once(f"connections wait: {getattr(error, 'strerror', '') or error}")

    def _lead(self, accepted: socket.socket, forward: Forward) -> None:
        with accepted:
            if not self._connected.wait(_WAIT_SECONDS) or self._connection is None:
                return
            place = forward.path or (forward.host, forward.port)
            try:
                stream = self._connection.dial(place, Deadline.after(self.clock, _WAIT_SECONDS))
            except TpukitError as error:
                self.on_change(error.summary())
                return
            splice(accepted, stream)

    def _lead_here(self, stream: Any, origin: object, place: tuple[str, int]) -> None:
        port = place[1]
        found = (each for each in self._forwards if each.reverse and each.listen == port)
        try:
            here = socket.create_connection((LOOPBACK, next(found).port))
        except (OSError, StopIteration) as error:
            self.on_change(f"what comes by port {port} of the worker finds nobody here ({error})")
            stream.close()
        else:
            splice(here, stream)


def through_worker(connect: Callable[[], Connection]) -> Dial:
    """Return a dial that goes through another worker, over one connection to it for all.

    Whoever asks while it is being made waits for the same attempt, and gets its error.
    """
    lock = threading.Lock()
    shared: list[Future[Connection]] = []

    def make(attempt: Future[Connection]) -> None:
        try:
            attempt.set_result(connect())
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
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
    """Copy between a socket and a channel until both directions have ended; close both."""
    back = in_thread(_copy_back, channel, local)
    with contextlib.suppress(OSError, EOFError):
        while data := local.recv(_CHUNK):
            channel.sendall(data)
    # Also where it was broken off here: whoever serves there would wait for the rest.
    for last in (channel.shutdown_write, back.join, channel.close):
        with contextlib.suppress(OSError, EOFError):  # the connection may be gone
            last()
    local.close()


def _copy_back(channel: Any, local: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(_CHUNK):
            local.sendall(data)
    # The other end has finished; one that is gone altogether will not read on either.
    with contextlib.suppress(OSError):
        local.shutdown(socket.SHUT_RDWR if channel.closed else socket.SHUT_WR)
