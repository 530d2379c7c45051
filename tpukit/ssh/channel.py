"""One command on one channel: starts it once and reads its output to the end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from tpukit.clock import Deadline
from tpukit.errors import TpukitError
from tpukit.ssh.dial import in_thread

OnOutput = Callable[[str, bytes], None]

_CHUNK = 1 << 17
#: The most bytes of input to send without a thread: they fit into the peer's window.
_SHORT = 16 << 10
#: Seconds between checks of the deadline, which may not follow the system's clock.
_POLL_SECONDS = 0.5


class Exchange:
    """Run one command on an open paramiko channel.

    A helper thread sends input that could block, so that the caller's thread can keep to the
    deadline. `stdout` and `stderr` have the last `keep` bytes of each stream.
    """

    def __init__(self, channel: Any, on_output: OnOutput | None, keep: int) -> None:
        self._channel = channel
        self._on_output = on_output
        self._keep = keep
        self._woken = threading.Event()
        self._unreadable: TpukitError | None = None
        self.stdout, self.stderr = bytearray(), bytearray()
        self.dropped = {"stdout": 0, "stderr": 0}  #: bytes of each stream before the last ones
        for buffer in (channel.in_buffer, channel.in_stderr_buffer):
            # Each buffer clears its event when it is empty; it must not clear the other's event.
            buffer.set_event(SimpleNamespace(set=self._woken.set, clear=lambda: None))

    def run(self, command: str, stdin: bytes | Iterable[bytes], deadline: Deadline) -> int | None:
        """Return the exit status, -1 if there is none, or None if the deadline passed.

        Raises `TpukitError` if the input cannot be read; the command did not get the rest.
        """
        room = min(_SHORT, int(self._channel.out_window_size))  # more would wait for the peer
        if isinstance(stdin, bytes) and len(stdin) <= room:
            self._start(command, stdin)
        else:
            in_thread(self._start, command, stdin)
        status = None
        try:
            status = self._follow(deadline)
        finally:
            if status is None:
                in_thread(self._close)  # closing sends a message, and a frozen peer could block it
            else:
                self._close()
        if self._unreadable:
            raise self._unreadable
        return status

    def _start(self, command: str, stdin: bytes | Iterable[bytes]) -> None:
        from tpukit.ssh.transport import request_command

        # A refused command, a lost connection and a command that ends before it has read its input
        # all close the channel, and `_follow` handles that. If the input cannot be read or sent,
        # close the channel too: the command would wait for the rest.
        try:
            request_command(self._channel, command)
            for chunk in (stdin,) if isinstance(stdin, bytes) else self._read(stdin):
                self._channel.sendall(chunk)
            self._channel.shutdown_write()
        except Exception:  # noqa: BLE001
            self._close()

    def _read(self, stdin: Iterable[bytes]) -> Iterator[bytes]:
        try:
            yield from stdin
        except TpukitError as error:
            self._unreadable = error
            raise
        except OSError as error:
            self._unreadable = TpukitError("the input cannot be read", reason=str(error))
            raise

    def _follow(self, deadline: Deadline) -> int | None:
        from tpukit.ssh.transport import FAILURES

        channel = self._channel
        while not deadline.passed():
            self._woken.clear()
            ended = channel.closed or (channel.eof_received and channel.exit_status_ready())
            try:  # reading lets the peer send more
                out = channel.recv(_CHUNK) if channel.recv_ready() else b""
                err = channel.recv_stderr(_CHUNK) if channel.recv_stderr_ready() else b""
            except FAILURES:
                return -1
            self._take("stdout", self.stdout, out)
            self._take("stderr", self.stderr, err)
            if not (out or err):
                if ended:
                    return int(channel.recv_exit_status())
                self._woken.wait(min(_POLL_SECONDS, deadline.remaining()))
        return None

    def _take(self, name: str, kept: bytearray, chunk: bytes) -> None:
        if chunk:
            kept += chunk
            over = max(0, len(kept) - self._keep)
            del kept[:over]
            self.dropped[name] += over
            if self._on_output is not None:
                self._on_output(name, chunk)

    def _close(self) -> None:
        # The connection may already be closed, and the channel with it.
        with contextlib.suppress(Exception):
            self._channel.close()
