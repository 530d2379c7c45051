"""Reads, compresses, hashes and writes the bytes of files, for both ends of a copy.

The client uses it too, because each end can send and receive.
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
#: The least bytes of a hole, and the size of a block of zeros that becomes one.
BLOCK = 4096
#: The errors of a full disk.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: zlib's window size, with gzip's header.
_GZIP = 31
#: Bytes to compress as a sample, and the part to which they must shrink.
_SAMPLE, _WORTHWHILE = 4 << 20, 0.9
#: The most bytes to read of a file with size 0, such as those of /proc.
_UNTOLD = 64 << 20

#: Gets the number of bytes that were handled.
Advance = Callable[[int], object]


class Changed(Exception):
    """A file became shorter, or its bytes changed; `path` names it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class FilePart:
    """The first bytes of a file: as many as it had at the time of `status`.

    `modified` is in nanoseconds. `stored` is the number of bytes on the disk, which is smaller than
    `size` if the file has holes.
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


#: Bytes, or a file whose bytes are read when they are needed.
Part = Union[bytes, FilePart]


def file_part(path: str) -> Part:
    """Return a file as a part; for a file with size 0, the bytes that it yields."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        data = b"" if status.st_size else file.read(_UNTOLD)
    return data or FilePart(path, status)


def stored(part: Part) -> int:
    """Return the number of bytes that a part needs on a disk, without holes."""
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
    """Yield the content of a piece of a gzip stream, at most a megabyte at a time."""
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

    For a link, return "-> " and the SHA-256 of its target; for any other kind, "".
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
