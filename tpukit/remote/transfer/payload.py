"""What a transfer carries: bytes of a known size and digest that can be read from any offset."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NoReturn

from tpukit.errors import BadInput, TpukitError
from tpukit.text import shown_path

_CHUNK = 1 << 20
#: A sample that shrinks less than this is sent as it is.
_WORTHWHILE = 0.9
_SAMPLE = 4 << 20
#: A file has a hole if it lacks at least this.
_BLOCK = 4096
GZIP = 31  #: zlib's window size, with gzip's header


@dataclass(frozen=True)
class FilePart:
    """The first bytes of a file, so many as it had when it was looked at."""

    path: Path
    size: int
    modified: int  #: in nanoseconds
    stored: int  #: bytes that it needs on a disk: fewer than its size if it has holes

    @classmethod
    def described(cls, path: Path, status: os.stat_result) -> FilePart:
        """Return the file at a path, which has this status."""
        stored, size = status.st_blocks * 512, status.st_size
        return cls(path, size, status.st_mtime_ns, stored if size - stored >= _BLOCK else size)

    def __len__(self) -> int:
        return self.size

    @property
    def changed(self) -> bool:
        """Whether the file was written to since, or is gone."""
        try:
            return self.path.stat().st_mtime_ns != self.modified
        except OSError:
            return True

    def chunks(self, offset: int) -> Iterator[bytes]:
        """Yield the bytes from `offset` on; raise `TpukitError` where the file became shorter."""
        left = self.size - offset
        with _opened(self.path) as file:
            file.seek(offset)
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise TpukitError(f"{shown_path(self.path)} became shorter while it was read")
                left -= len(chunk)
                yield chunk


@dataclass(frozen=True)
class Payload:
    """One file as it is, or a tar archive that is made while it is read.

    Nothing is kept on this disk: an archive of unchanged files is the same archive every time.
    """

    parts: tuple[bytes | FilePart, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    @property
    def stored(self) -> int:
        """The bytes that it needs on a disk, whose holes need none."""
        return sum(part.stored if isinstance(part, FilePart) else len(part) for part in self.parts)

    @property
    def sparse(self) -> bool:
        """Whether there are holes in it; they are zeros on their way."""
        return self.stored < self.size

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all bytes, in hexadecimal."""
        found = hashlib.sha256()
        for chunk in self.chunks():
            found.update(chunk)
        return found.hexdigest()

    @property
    def changed(self) -> str:
        """The files that were written to since they were looked at, for a message."""
        files = [each for each in self.parts if isinstance(each, FilePart) and each.changed]
        return ", ".join(shown_path(each.path) for each in files[:5])

    @cached_property
    def compressible(self) -> bool:
        """Whether compressing is worth the time: for holes, or by the first megabytes."""
        if self.sparse:
            return True
        sample = bytearray()
        for chunk in self.chunks():
            sample += chunk
            if len(sample) >= _SAMPLE:
                break
        return len(zlib.compress(sample[:_SAMPLE], 1)) < len(sample[:_SAMPLE]) * _WORTHWHILE

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes from `offset` to the end."""
        for part in self.parts:
            if offset < len(part):
                yield from (part[offset:],) if isinstance(part, bytes) else part.chunks(offset)
            offset = max(0, offset - len(part))


def compressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield chunks as a gzip stream."""
    squeezer = zlib.compressobj(1, zlib.DEFLATED, GZIP)
    for chunk in chunks:
        if data := squeezer.compress(chunk):
            yield data
    yield squeezer.flush()


def inflated(data: bytes, inflater: zlib._Decompress) -> Iterator[bytes]:
    """Yield what a piece of a gzip stream holds, never more than a megabyte at a time.

    Raises `TpukitError` where it is no such stream.
    """
    try:
        while data:
            yield inflater.decompress(data, _CHUNK)
            data = inflater.unconsumed_tail
    except zlib.error as error:
        raise TpukitError("the worker sent what is no gzip stream") from error


def pieces(data: bytes, position: int) -> Iterator[bytes]:
    """Yield bytes that go to a position of a file, so that holes can be told from what is stored.

    Each is zeros alone, or ends at a multiple of the size of a disk's block.
    """
    if not data.strip(b"\0"):
        yield data
        return
    start, end = 0, _BLOCK - position % _BLOCK
    while start < len(data):
        yield data[start:end]
        start, end = end, end + _BLOCK


def file_payload(path: Path) -> Payload:
    """Return a single file as a payload; one that says it has no bytes, as in /proc, may have."""
    with _opened(path) as file:
        found = os.fstat(file.fileno())
        data = b"" if found.st_size else file.read()
    return Payload((data or FilePart.described(path, found),))


def tree_members(root: Path, name: str) -> dict[str, Path]:
    """Return a file or folder, and all that is below it, as members called `name` and `name/…`."""
    members = {name: root}
    if root.is_dir():
        for folder, folders, files in os.walk(root, onerror=_refuse):
            folders.sort()
            inside = PurePosixPath(name, Path(folder).relative_to(root))
            for each in sorted([*folders, *files]):
                members[str(inside / each)] = Path(folder, each)
    return members


def tree_payload(members: Mapping[str, Path | bytes], *, hard_links: bool = False) -> Payload:
    """Return the archive of members: each the file, folder or link at a path, or a file's bytes.

    With `hard_links`, the second name of a file is one there too.
    """
    parts: list[bytes | FilePart] = []
    first_names: dict[tuple[int, int], str] = {}
    for name, source in members.items():
        info = tarfile.TarInfo(name)
        content: bytes | FilePart = b""
        if isinstance(source, bytes):
            content = source
        else:
            status = _status(source)
            inode = (status.st_dev, status.st_ino)
            if hard_links and inode in first_names:
                info.type, info.linkname = tarfile.LNKTYPE, first_names[inode]
            else:
                content = _described(info, source, status)
                if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                    first_names[inode] = name
        info.size = len(content)
        # GNU's own format has names as they are on disk, and both GNU tar and bsdtar read it.
        header = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        parts += [header, content, b"\0" * (-info.size % tarfile.BLOCKSIZE)]
    return Payload((*parts, b"\0" * (2 * tarfile.BLOCKSIZE)))


def _described(info: tarfile.TarInfo, source: Path, status: os.stat_result) -> bytes | FilePart:
    """Make a member what is at a path; return its content."""
    info.mode, info.mtime = stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
    if stat.S_ISREG(status.st_mode):
        return FilePart.described(source, status)
    if stat.S_ISDIR(status.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, info.mode | 0o700  # it is to be filled and moved
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(source)
    else:
        raise BadInput(f"{shown_path(source)} is no file, folder or link: it cannot be copied")
    return b""


def _status(source: Path) -> os.stat_result:
    try:
        return source.lstat()
    except OSError as error:
        _refuse(error)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    shown = shown_path(Path(error.filename))
    raise BadInput(f"cannot read {shown}", reason=error.strerror or str(error)) from error
