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
GZIP = 31  #: zlib's window size, with gzip's header


@dataclass(frozen=True)
class FilePart:
    """The first bytes of a file, so many as it had when it was looked at."""

    path: Path
    size: int
    modified: int  #: in nanoseconds

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
        """Whether compressing the first megabytes is worth the time."""
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


def file_payload(path: Path) -> Payload:
    """Return a single file as a payload; one that says it has no bytes, as in /proc, may have."""
    with _opened(path) as file:
        found = os.fstat(file.fileno())
        data = b"" if found.st_size else file.read()
    return Payload((data or FilePart(path, found.st_size, found.st_mtime_ns),))


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


def tree_payload(members: Mapping[str, Path | bytes]) -> Payload:
    """Return the archive of members: each the file, folder or link at a path, or a file's bytes."""
    parts: list[bytes | FilePart] = []
    for name, source in members.items():
        info = tarfile.TarInfo(name)
        content = source if isinstance(source, bytes) else _described(info, source)
        info.size = len(content)
        # GNU's own format has names as they are on disk, and both GNU tar and bsdtar read it.
        header = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        parts += [header, content, b"\0" * (-info.size % tarfile.BLOCKSIZE)]
    return Payload((*parts, b"\0" * (2 * tarfile.BLOCKSIZE)))


def _described(info: tarfile.TarInfo, source: Path) -> bytes | FilePart:
    """Make a member what is at a path; return its content."""
    try:
        found = source.lstat()
    except OSError as error:
        _refuse(error)
    info.mode, info.mtime = stat.S_IMODE(found.st_mode) & 0o777, int(found.st_mtime)
    if stat.S_ISREG(found.st_mode):
        return FilePart(source, found.st_size, found.st_mtime_ns)
    if stat.S_ISDIR(found.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, info.mode | 0o700  # it is to be filled and moved
    elif stat.S_ISLNK(found.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(source)
    else:
        raise BadInput(f"{shown_path(source)} is no file, folder or link: it cannot be copied")
    return b""


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    shown = shown_path(Path(error.filename))
    raise BadInput(f"cannot read {shown}", reason=error.strerror or str(error)) from error
