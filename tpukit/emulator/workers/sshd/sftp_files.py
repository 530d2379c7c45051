"""A worker's files over SFTP, by the worker's own paths."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import AsyncIterator
from typing import Any

import asyncssh

from tpukit.emulator.workers.engines.engine import SftpFolders

_FAILURES = (OSError, asyncssh.Error, asyncssh.BreakReceived)
_LINKS = 40  #: path_resolution(7): the most links in one path


class WorkerFiles(asyncssh.SFTPServer):
    """A worker's files over SFTP; relative paths start in the user's home on the worker.

    If the worker has its own root, this class resolves links itself. The system would resolve an
    absolute link from the root of this process, outside the worker.
    """

    def __init__(self, channel: Any, files: SftpFolders) -> None:
        super().__init__(channel)
        self._channel: asyncssh.SSHServerChannel[bytes] = channel
        self._home = os.fsencode(files.home)
        self._root = os.fsencode(files.root) if files.root else b""

    def map_path(self, path: bytes) -> bytes:
        """Return this process's path of a worker's file, without resolving the last link."""
        path = os.path.join(self._home, path)
        if not self._root:
            return path
        parent, name = os.path.split(path.rstrip(b"/"))
        if name in (b"", b".", b".."):
            return self._root + followed(self._root, path)
        return self._root + os.path.join(followed(self._root, parent), name)

    def realpath(self, path: bytes) -> bytes:
        path = os.path.join(self._home, path)
        return followed(self._root, path) if self._root else os.path.realpath(path)

    # These methods resolve the last link too.

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> Any:
        return super().open(self.realpath(path), pflags, attrs)

    def stat(self, path: bytes) -> Any:
        return super().stat(self.realpath(path))

    def setstat(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> Any:
        return super().setstat(self.realpath(path), attrs)

    def statvfs(self, path: bytes) -> Any:
        return super().statvfs(self.realpath(path))

    def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
        return super().scandir(self.realpath(path))

    def symlink(self, oldpath: bytes, newpath: bytes) -> None:
        os.symlink(oldpath, self.map_path(newpath))

    def exit(self) -> None:
        """Exit with status 0, as sftp-server does: without it, OpenSSH's scp reports a failure."""
        with contextlib.suppress(*_FAILURES):
            self._channel.exit(0)


def followed(root: bytes, path: bytes) -> bytes:
    """Resolve the links of an absolute path for a process with the root folder `root`.

    Raises `OSError` if there are too many links.
    """
    done, left, links = b"/", path.split(b"/")[::-1], 0
    while left:
        name = left.pop()
        step = os.path.normpath(os.path.join(done, name))  # `done` has no links, `name` no slashes
        target = _target(root + step)
        if target is None:
            done = step
            continue
        links += 1
        if links > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        done = b"/" if target.startswith(b"/") else done
        left.extend(target.split(b"/")[::-1])
    return done


def _target(path: bytes) -> bytes | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
