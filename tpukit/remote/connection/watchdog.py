"""A socket that ends the connection when the peer falls silent."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable

_NAME = "tpukit-keepalive"
#: Of the silence that is allowed, the part in which one wait for the peer ends.
_SLICES = 24


class WatchedSocket(socket.socket):
    """A connected socket for paramiko that asks a silent peer for a sign of life, then gives up.

    It takes the place of the one it is made of. paramiko waits for a frozen peer for ever, with
    its own keepalive too: that one asks for no answer (paramiko/paramiko:paramiko/transport.py,
    set_keepalive). It does wait in slices, though, so that silence can be counted here without
    another thread or a clock: a process that was stopped, or a laptop that slept, did not wait and
    counts nothing.
    """

    def __init__(self, connected: socket.socket, silence_seconds: float) -> None:
        # Passed on, because a peer that is already gone makes the socket refuse to tell them.
        kind = (connected.family, connected.type, connected.proto)
        super().__init__(*kind, fileno=connected.detach())
        self._silence_seconds = silence_seconds
        self._unreceived = 0.0
        self._unsent = 0.0
        #: Called in a thread of its own after a third of the silence that is allowed.
        self.ask: Callable[[], object] = lambda: None
        self._asked = False
        self.fault = ""  #: why this socket was given up, if it was

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive as a socket does; count the silence of the peer."""
        try:
            data = super().recv(size, flags)
        except TimeoutError:
            self._unreceived += self.timeout or 0.0
            self._judge(self._unreceived)
            raise
        self._unreceived, self._asked = 0.0, False
        return data

    def send(self, data: bytes, flags: int = 0) -> int:  # type: ignore[override]
        """Send as a socket does; count how long the peer takes nothing."""
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
        # recv gets the answer; send judges a question that cannot be sent.
        with contextlib.suppress(Exception):
            self.ask()

    def abort(self, fault: str) -> None:
        """End the connection at once for everything that waits on it."""
        self.fault = self.fault or fault
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def settimeout(self, seconds: float | None) -> None:
        """Wait so long for each `recv` and `send`, or longer where the silence allowed is long."""
        # Ten wakes a second, times hundreds of waiting connections, are most of a client's work.
        super().settimeout(max(seconds or 0.0, self._silence_seconds / _SLICES))
