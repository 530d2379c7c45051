"""A socket that ends the connection when the peer falls silent."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable

_NAME = "tpukit-keepalive"
#: One wait for the peer lasts this fraction (1/24) of the allowed silence.
_SLICES = 24


class WatchedSocket(socket.socket):
    """A connected socket for paramiko that asks a silent peer for a sign of life, then gives up.

    It replaces the given socket. paramiko waits for a frozen peer without limit, even with its own
    keepalive, which requests no answer (paramiko/paramiko:paramiko/transport.py, set_keepalive).
    But it waits in short steps, so this socket can count the silence without a thread or a clock.
    Time in which the process was stopped, or the laptop slept, does not count.
    """

    def __init__(self, connected: socket.socket, silence_seconds: float) -> None:
        # Given explicitly: if the peer is already gone, the new socket cannot detect them.
        kind = (connected.family, connected.type, connected.proto)
        super().__init__(*kind, fileno=connected.detach())
        self._silence_seconds = silence_seconds
        self._unreceived = 0.0
        self._unsent = 0.0
        #: Called in a separate thread after a third of the allowed silence.
        self.ask: Callable[[], object] = lambda: None
        self._asked = False
        self.fault = ""  #: the reason if the connection was aborted

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive like a socket, and count the silence of the peer."""
        try:
            data = super().recv(size, flags)
        except TimeoutError:
            self._unreceived += self.timeout or 0.0
            self._judge(self._unreceived)
            raise
        self._unreceived, self._asked = 0.0, False
        return data

    def send(self, data: bytes, flags: int = 0) -> int:  # type: ignore[override]
        """Send like a socket, and count the time in which the peer accepts nothing."""
        try:
            sent = super().send(data, flags)
        except TimeoutError:
            self._unsent += self.timeout or 0.0
            self._judge(self._unsent)
            raise
        self._unsent = 0.0
        return sent

    def _judge(self, silent: float) -> None:
        if silent >= self._silence_seconds:
            self.abort(f"it was silent for {self._silence_seconds:g} s")
            raise ConnectionAbortedError(errno.ECONNABORTED, self.fault)
        if not self._asked and silent >= self._silence_seconds / 3:
            self._asked = True
            threading.Thread(target=self._ask_once, name=_NAME, daemon=True).start()

    def _ask_once(self) -> None:
        # recv sees the answer; send notices if the request cannot be sent.
        with contextlib.suppress(Exception):
            self.ask()

    def abort(self, fault: str) -> None:
        """End the connection at once; everything that waits on it fails."""
        self.fault = self.fault or fault
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def settimeout(self, seconds: float | None) -> None:
        """Set the time-out of each `recv` and `send`; long allowed silences raise it."""
        # Without that, hundreds of connections would each wake up ten times a second.
        super().settimeout(max(seconds or 0.0, self._silence_seconds / _SLICES))
