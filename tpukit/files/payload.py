"""The payload of an upload: bytes of a known size and digest, readable from any offset."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tpukit.agent.archives import Member, archived, entry, members
from tpukit.agent.contents import (
    Changed,
    FilePart,
    Part,
    chunks,
    file_part,
    is_compressible,
    stored,
)
from tpukit.errors import BadInput, TpukitError
from tpukit.text import shown_path


@dataclass(frozen=True)
class Payload:
    """A single file, or a tar archive that is made while it is read.

    The archive needs no disk space: unchanged files give the same bytes every time.
    """

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    @property
    def stored(self) -> int:
        """The bytes that it needs on a disk, not counting holes."""
        return sum(map(stored, self.parts))

    @property
    def sparse(self) -> bool:
        """True if it has holes, which are sent as zeros."""
        return self.stored < self.size

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all bytes, in hexadecimal."""
        content = hashlib.sha256()
        for chunk in self.chunks():
            content.update(chunk)
        return content.hexdigest()

    @property
    def changed(self) -> str:
        """The files that have changed since they were listed, as text for a message."""
        files = [part for part in self.parts if isinstance(part, FilePart) and _is_changed(part)]
        return ", ".join(shown_path(Path(part.path)) for part in files[:5])

    @cached_property
    def compressible(self) -> bool:
        """True if compression is worth the time: there are holes, or the first megabytes shrink."""
        with _readable():
            return self.sparse or is_compressible(self.parts)

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes from `offset` on; raise `TpukitError` if a file became shorter."""
        with _readable():
            yield from chunks(self.parts, offset)


def file_payload(path: Path) -> Payload:
    """Return a single file as a payload."""
    with _readable():
        return Payload((file_part(str(path)),))


def tree_members(root: Path, name: str) -> list[Member]:
    """Return a file, or a folder and its contents, as members named `name` and `name/…`."""
    with _readable():
        return list(members(name, str(root)))


def tree_payload(listed: Sequence[Member]) -> Payload:
    """Return the archive of members; raise `BadInput` for a pipe, a socket or a device."""
    for member in listed:
        if member.is_special:
            shown = shown_path(Path(member.path))
            raise BadInput(f"{shown} is no file, folder or link: it cannot be copied")
    with _readable():
        return Payload(tuple(archived(listed)))


def push_payload(head: bytes, files: Mapping[str, Path]) -> Payload:
    """Return the archive of a push: its `head`, and files in the folder `files`."""
    with _readable():
        listed = [
            Member(f"files/{name}", str(path), os.lstat(path)) for name, path in files.items()
        ]
    return Payload((*entry(tarfile.TarInfo("head"), head), *tree_payload(listed).parts))


def _is_changed(part: FilePart) -> bool:
    try:
        return os.stat(part.path).st_mtime_ns != part.modified
    except OSError:
        return True


@contextmanager
def _readable() -> Iterator[None]:
    """Raise errors of reading a file as `BadInput`, or as `TpukitError` if it became shorter."""
    try:
        yield
    except Changed as error:
        shown = shown_path(Path(error.path))
        raise TpukitError(f"{shown} became shorter while it was read") from error
    except OSError as error:
        shown = shown_path(Path(error.filename)) if error.filename else "a file"
        raise BadInput(f"cannot read {shown}", reason=error.strerror or str(error)) from error
