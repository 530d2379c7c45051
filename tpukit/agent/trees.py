"""Archives that a client sent: unpacked, then merged with what is there."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tarfile
from typing import IO

from tpukit.agent.progress import ProgressReport

CHUNK = 1 << 20
#: Zeros of this size become a hole in a file that has holes where it comes from.
BLOCK = 4096
#: Nobody but the owner may write to what arrives in an archive.
_UMASK = 0o022
#: What a full disk answers.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: What a file system without hard links answers.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def unpack(file: IO[bytes], folder: str, sparse: bool, progress: ProgressReport) -> int:
    """Unpack an archive into an empty folder; folders that it does not name are made.

    Return how many hard links became files of their own, on a file system that has none.
    """
    folders: list[tuple[str, tarfile.TarInfo]] = []
    copied = 0
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in iter(archive.next, None):
            archive.members = []  # type: ignore[attr-defined]  # it keeps all that it has seen
            path = os.path.join(folder, member.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if member.isdir():
                os.makedirs(path, exist_ok=True)
                folders.append((path, member))
            elif member.issym():
                os.symlink(member.linkname, path)
            elif member.islnk():
                copied += _link(os.path.join(folder, member.linkname), path)
            else:
                _extract(archive, member, path, sparse, progress)
            progress.advance(1)
    for path, member in reversed(folders):
        os.chmod(path, member.mode & ~_UMASK)
        os.utime(path, (member.mtime, member.mtime))
    return copied


def merge(source: str, target: str) -> None:
    """Move what is in a folder into another one, which may be new; what else is there stays."""
    if not os.path.isdir(target):
        try:
            os.rename(source, target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        os.mkdir(target, os.stat(source).st_mode & 0o777)
    for name in sorted(os.listdir(source)):
        new, place = os.path.join(source, name), os.path.join(target, name)
        if os.path.isdir(new) and not os.path.islink(new):
            merge(new, place)
        else:
            put_file(new, place)


def put_file(new: str, place: str) -> None:
    """Move a file over the one at a place, in one step, through a link as `cp` does."""
    move_file(new, place if os.path.islink(new) else os.path.realpath(place))


def move_file(new: str, place: str) -> None:
    """Move a file, which may be a link, over the one or the link at a place, in one step.

    Whoever has the old one open goes on with that. A folder in the tree may be on another disk.
    """
    try:
        os.rename(new, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = os.path.join(os.path.dirname(place), f".tpukit-upload-{os.getpid()}")
        try:
            shutil.copy2(new, beside, follow_symlinks=False)
            os.rename(beside, place)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            raise


def write(file: IO[bytes], data: bytes, position: int, sparse: bool) -> None:
    """Write bytes at a position; if `sparse` is true, zeros become holes."""
    start = 0
    while start < len(data):
        size = BLOCK - (position + start) % BLOCK if sparse else len(data)
        piece = data[start : start + size]
        if not sparse or piece.count(0) < len(piece):
            written = 0
            while written < len(piece):
                written += os.pwrite(file.fileno(), piece[written:], position + start + written)
        start += len(piece)


def _extract(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    path: str,
    sparse: bool,
    progress: ProgressReport,
) -> None:
    source = archive.extractfile(member)
    assert source is not None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(path, flags, member.mode & ~_UMASK), "wb", 0) as file:
        position = 0
        for chunk in iter(lambda: source.read(CHUNK), b""):
            write(file, chunk, position, sparse)
            position += len(chunk)
            progress.advance(len(chunk))
        os.ftruncate(file.fileno(), position)
    os.utime(path, (member.mtime, member.mtime))


def _link(first: str, path: str) -> int:
    """Make a second name of a file; return 1 if it had to become a file of its own."""
    try:
        os.link(first, path, follow_symlinks=False)
        return 0
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    shutil.copy2(first, path)
    return 1
