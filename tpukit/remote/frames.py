"""Messages over a Unix socket: between the keeper of connections and those it works for."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import threading
from typing import Any

#: A message is a kind, a length, and so many bytes.
_HEAD = struct.Struct(">cI")
#: Output is of a worker, by its place in the request, and of a stream.
_OUTPUT = struct.Struct(">I?")
_CHUNK = 1 << 17
_LARGEST = 16 << 20

_DOCUMENT, _OUTPUT_KIND = b"j", b"o"


class Gone(Exception):
    """The other end has closed the line, or speaks another language."""


class Line:
    """A connected socket that carries messages; one thread at a time may receive."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._pending = bytearray()
        self._sending = threading.Lock()

    def tell(self, **document: Any) -> None:
        """Send one document; raise `Gone` where nobody is left to read it."""
        self._send(_DOCUMENT, json.dumps(document).encode())

    def pass_on(self, place: int, stream: str, chunk: bytes) -> None:
        """Send a piece of the output of the worker at `place`; raise `Gone` as `tell` does."""
        self._send(_OUTPUT_KIND, _OUTPUT.pack(place, stream == "stderr") + chunk)

    def receive(self) -> tuple[int, str, bytes] | dict[str, Any]:
        """Return the next message: output as (place, stream, chunk), or a document.

        Raises `Gone` where there will be none.
        """
        while (message := self._complete()) is None:
            self._pending += self._more(None)
        return message

    def hear(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the next message, which has to be a document.

        Raises:
            Gone: there will be none.
            TimeoutError: it did not come in time; nothing of it is lost.
        """
        while (message := self._complete()) is None:
            self._pending += self._more(seconds)
        if not isinstance(message, dict):
            raise Gone
        return message

    def close(self) -> None:
        """End the line at once, for a thread that waits on it too."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, kind: bytes, body: bytes) -> None:
        try:
            with self._sending:
                self._socket.sendall(_HEAD.pack(kind, len(body)) + body)
        except OSError as error:
            raise Gone from error

    def _complete(self) -> tuple[int, str, bytes] | dict[str, Any] | None:
        if len(self._pending) < _HEAD.size:
            return None
        kind, size = _HEAD.unpack_from(self._pending)
        if size > _LARGEST:
            raise Gone
        end = _HEAD.size + size
        if len(self._pending) < end:
            return None
        body = bytes(self._pending[_HEAD.size : end])
        del self._pending[:end]
        return _parsed(kind, body)

    def _more(self, seconds: float | None) -> bytes:
        try:
            if seconds is not None and not _readable(self._socket, seconds):
                raise TimeoutError
            chunk = self._socket.recv(_CHUNK)
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:  # ValueError: closed by another thread of ours
            raise Gone from error
        if not chunk:
            raise Gone
        return chunk


def _parsed(kind: bytes, body: bytes) -> tuple[int, str, bytes] | dict[str, Any]:
    if kind == _OUTPUT_KIND and len(body) >= _OUTPUT.size:
        place, wrong = _OUTPUT.unpack_from(body)
        return place, "stderr" if wrong else "stdout", body[_OUTPUT.size :]
    try:
        document = json.loads(body) if kind == _DOCUMENT else None
    except ValueError as error:
        raise Gone from error
    if not isinstance(document, dict):
        raise Gone
    return document


def _readable(connected: socket.socket, seconds: float) -> bool:
    waiter = select.poll()
    waiter.register(connected, select.POLLIN)
    return bool(waiter.poll(1000 * seconds))
