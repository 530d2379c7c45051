"""Where the process is that keeps connections, and how it is started."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpukit.errors import BadInput, TpukitError
from tpukit.paths import private_directory
from tpukit.remote.frames import Line
from tpukit.text import one_line

#: Seconds after which a keeper closes what nobody has used, and ends.
IDLE_SECONDS = 600.0
#: What the system takes as a socket's name: sun_path of unix(7) and of macOS, with its last byte.
_LONGEST_NAME = 103


class KeeperHome:
    """The folder of a keeper's socket, and the way to whoever listens there."""

    def __init__(self, folder: Path, idle_seconds: float = IDLE_SECONDS) -> None:
        self._folder = folder
        self._idle_seconds = idle_seconds

    def line(self) -> Line:
        """Return a line to the keeper, which is started where none runs."""
        found = self.found()
        if found:
            return found
        private_directory(self._folder)
        with _exclusively(self._folder / "start.lock"):
            found = self.found() or self._started()
        return found

    def found(self) -> Line | None:
        """Return a line to the keeper if one runs."""
        if len(os.fsencode(self._place)) > _LONGEST_NAME:
            raise BadInput(
                "connections cannot be kept: the path of the socket is too long",
                reason=one_line(str(self._place)),
                fix="export TPUKIT_HOME=/a/short/path",
            )
        if not self._folder.exists():
            return None
        private_directory(self._folder)  # whoever can put a socket there would get every command
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(str(self._place))
        except OSError:
            connected.close()
            return None
        return Line(connected)

    def give_up(self) -> None:
        """Leave a keeper that does not answer to itself: the next line is to another."""
        self._place.unlink(missing_ok=True)

    @property
    def _place(self) -> Path:
        return self._folder / "keeper"

    def _started(self) -> Line:
        words = [sys.executable, "-P", "-m", "tpukit.remote.keeper", str(self._place)]
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        keeper = subprocess.Popen(
            [*words, str(self._idle_seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # It outlives this command: none of its secrets, and modules from where ours are.
            env={**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        assert keeper.stdout
        with keeper.stdout:
            keeper.stdout.read()  # ends when it listens, or when it failed
        found = self.found()
        if not found:
            raise TpukitError("the keeper of connections does not start")
        return found


@contextmanager
def _exclusively(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
