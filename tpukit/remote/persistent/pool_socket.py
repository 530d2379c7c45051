"""The socket between a command and the connection pool: its messages, and who listens there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.paths import exclusively, private_directory
from tpukit.text import one_line

#: Seconds after which the pool closes what nobody has used, and ends.
IDLE_SECONDS = 600.0
#: Seconds for an answer that takes no work.
_ANSWER_SECONDS = 10.0
#: What the system takes as a socket's name: sun_path of unix(7) and of macOS, with its last byte.
_LONGEST_NAME = 103
#: A message is a kind, a length, and so many bytes.
_HEAD = struct.Struct(">cI")
#: Output is of a worker, by its place in the request, and of a stream.
_OUTPUT = struct.Struct(">I?")
_LARGEST = 16 << 20
_DOCUMENT, _OUTPUT_KIND = b"j", b"o"


class Disconnected(Exception):
    """The other end has closed the socket, or speaks another language."""


class MessageSocket:
    """A connected socket that carries messages; one thread at a time may receive."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._sending = threading.Lock()

    def send(self, **document: Any) -> None:
        """Send one document; raise `Disconnected` where nobody is left to read it."""
        self._send(_DOCUMENT, json.dumps(document).encode())

    def send_output(self, place: int, stream: str, chunk: bytes) -> None:
        """Send a piece of a worker's output; raise `Disconnected` as `send` does."""
        self._send(_OUTPUT_KIND, _OUTPUT.pack(place, stream == "stderr") + chunk)

    def receive(self, seconds: float | None = None) -> tuple[int, str, bytes] | dict[str, Any]:
        """Return the next message: output as (place, stream, chunk), or a document.

        Raises:
            Disconnected: there will be none.
            TimeoutError: it did not come in time.
        """
        try:
            self._socket.settimeout(seconds)
            kind, size = _HEAD.unpack(self._exactly(_HEAD.size))
            if size > _LARGEST:
                raise Disconnected
            return _parsed(kind, self._exactly(size))
        except TimeoutError:
            raise
        except OSError as error:  # also where another thread of ours has closed it
            raise Disconnected from error

    def receive_document(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the next message, which has to be a document; raise as `receive` does."""
        message = self.receive(seconds)
        if not isinstance(message, dict):
            raise Disconnected
        return message

    def close(self) -> None:
        """Disconnect at once, for a thread that waits here too."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, kind: bytes, body: bytes) -> None:
        try:
            with self._sending:
                self._socket.sendall(_HEAD.pack(kind, len(body)) + body)
        except OSError as error:
            raise Disconnected from error

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise Disconnected
            data += chunk
        return data


class PoolSocket:
    """Where the pool's process listens; it is started by the first who wants to connect."""

    def __init__(
        self,
        folder: Path,
        idle_seconds: float = IDLE_SECONDS,
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        self._folder = folder
        self._idle_seconds = idle_seconds
        self.answer_seconds = answer_seconds

    def connect(self) -> MessageSocket:
        """Connect to the pool, which is started where none runs.

        Raises:
            BadInput: the socket's path is too long.
            TpukitError: the process does not start.
        """
        connected = self.connect_if_running()
        if connected:
            return connected
        private_directory(self._folder)
        with exclusively(self._folder / "start.lock"):
            return self.connect_if_running() or self._started()

    def connect_if_running(self) -> MessageSocket | None:
        """Connect to the pool if one runs; raise `BadInput` where the socket's path is too long."""
        if len(os.fsencode(self._path)) > _LONGEST_NAME:
            raise BadInput(
                "connections cannot be kept: the path of the socket is too long",
                reason=one_line(str(self._path)),
                fix=Fix(note="set TPUKIT_HOME to a short path"),
            )
        if not self._folder.exists():
            return None
        private_directory(self._folder)  # whoever can put a socket there would get every command
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(str(self._path))
        except OSError:
            connected.close()
            return None
        return MessageSocket(connected)

    def unlink(self) -> None:
        """Leave a process that does not answer to itself: the next one gets another socket."""
        self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return self._folder / "pool"

    def _started(self) -> MessageSocket:
        module = "tpukit.remote.persistent.pool_server"
        inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(self._path), str(self._idle_seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # It outlives this command: none of its secrets, and modules from where ours are.
            env={**inherited, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        assert process.stdout
        with process.stdout:
            process.stdout.read()  # ends when it listens, or when it failed
        connected = self.connect_if_running()
        if not connected:
            raise TpukitError("the connection pool does not start")
        return connected


def _parsed(kind: bytes, body: bytes) -> tuple[int, str, bytes] | dict[str, Any]:
    if kind == _OUTPUT_KIND and len(body) >= _OUTPUT.size:
        place, is_stderr = _OUTPUT.unpack_from(body)
        return place, "stderr" if is_stderr else "stdout", body[_OUTPUT.size :]
    try:
        document = json.loads(body) if kind == _DOCUMENT else None
    except ValueError as error:
        raise Disconnected from error
    if not isinstance(document, dict):
        raise Disconnected
    return document
