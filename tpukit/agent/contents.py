"""The bytes of files on their way, for both ends of a copy: read, compressed, hashed and written.

This machine uses it too: either end sends, and the other one receives.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zlib
from typing import IO, Callable, Iterable, Iterator, Mapping, Union

CHUNK = 1 << 20
#: A file has a hole if it lacks at least this; zeros of this size become one.
BLOCK = 4096
#: What a full disk answers.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: zlib's window size, with gzip's header.
_GZIP = 31
#: Bytes that show if compressing is worth the time, and what they shrink to at most.
_SAMPLE, _WORTHWHILE = 4 << 20, 0.9
#: Bytes that are read of a file that says it has none, as those of /proc do.
_UNTOLD = 64 << 20

#: Is told how many bytes were handled.
Advance = Callable[[int], object]


class Changed(Exception):
    """A file is shorter than it was, or holds other bytes; `path` names it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class FilePart:
    """The first bytes of a file: as many as it had when it was looked at.

    `modified` is in nanoseconds. `stored` are the bytes that it needs on a disk: fewer than its
    size if it has holes.
    """

    def __init__(self, path: str, status: os.stat_result) -> None:
        self.path, self.size, self.modified = path, status.st_size, status.st_mtime_ns
        stored = status.st_blocks * 512
        self.stored = stored if self.size - stored >= BLOCK else self.size

    def __len__(self) -> int:
        return self.size

    def read(self, file: IO[bytes], offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes from `offset` on; raise `Changed` if the file became shorter."""
        file.seek(offset)
        while offset < self.size:
            chunk = file.read(min(self.size - offset, CHUNK))
            if not chunk:
                raise Changed(self.path)
            offset += len(chunk)
            yield chunk


#: Bytes, or those of a file, which are read when their turn comes.
Part = Union[bytes, FilePart]


def file_part(path: str) -> Part:
    """Return a file; the bytes themselves of one that says it has none."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        data = b"" if status.st_size else file.read(_UNTOLD)
    return data or FilePart(path, status)


def stored(part: Part) -> int:
    """Return the bytes that a part needs on a disk: holes need none."""
    return part.stored if isinstance(part, FilePart) else len(part)


def chunks(parts: Iterable[Part], offset: int = 0) -> Iterator[bytes]:
    """Yield the bytes of parts from `offset` on; raise `Changed` if a file became shorter."""
    for part in parts:
        if offset < len(part):
            if isinstance(part, bytes):
                yield part[offset:]
            else:
                with open(part.path, "rb") as file:
                    yield from part.read(file, offset)
        offset = max(0, offset - len(part))


def is_compressible(parts: Iterable[Part]) -> bool:
    """Return True if the first megabytes shrink enough."""
    sample = bytearray()
    for chunk in chunks(parts):
        sample += chunk
        if len(sample) >= _SAMPLE:
            break
    return len(zlib.compress(sample[:_SAMPLE], 1)) < len(sample[:_SAMPLE]) * _WORTHWHILE


def compressed(data: Iterable[bytes]) -> Iterator[bytes]:
    """Yield bytes as a gzip stream."""
    squeezer = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
    for chunk in data:
        if squeezed := squeezer.compress(chunk):
            yield squeezed
    yield squeezer.flush()


def inflater() -> zlib._Decompress:
    """Return the state with which `inflated` undoes `compressed`."""
    return zlib.decompressobj(_GZIP)


def inflated(data: bytes, inflater: zlib._Decompress) -> Iterator[bytes]:
    """Yield the content of a piece of a gzip stream, a megabyte at most at a time."""
    while data:
        yield inflater.decompress(data, CHUNK)
        data = inflater.unconsumed_tail


def hashed(file: IO[bytes], advance: Advance = lambda amount: None) -> hashlib._Hash:
    """Return the SHA-256 of the rest of a file."""
    content = hashlib.sha256()
    for chunk in iter(lambda: file.read(CHUNK), b""):
        content.update(chunk)
        advance(len(chunk))
    return content


def fingerprint(path: str, advance: Advance = lambda amount: None) -> str:
    """Return the SHA-256 of a file, with " x" after it if it is a program.

    That of a link is "-> " and the SHA-256 of where it leads; that of anything else is empty.
    """
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return "-> " + hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()
    if not stat.S_ISREG(mode):
        return ""
    with open(path, "rb", buffering=0) as file:
        return hashed(file, advance).hexdigest() + " x" * bool(mode & stat.S_IXUSR)


def manifest_digest(manifest: Mapping[str, str]) -> str:
    """Return the SHA-256 of names and fingerprints."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


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
