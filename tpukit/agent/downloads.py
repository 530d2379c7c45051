"""Sends a file, a folder, or the matches of a pattern in a folder, in one pass.

A file that grows is sent at the length that it has when its turn comes. A file that was modified
while it was read is read again, and must have the same bytes.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import stat
import sys
import zlib
from typing import Iterable, Iterator

from tpukit.agent.archives import Member, archived, members
from tpukit.agent.contents import (
    Changed,
    FilePart,
    Part,
    compressed,
    file_part,
    is_compressible,
    stored,
)
from tpukit.agent.main import Home, Request, say
from tpukit.agent.progress import ProgressReport

#: The most names in an answer.
_NAMES = 20


class Refused(Exception):
    """The download ends with this state and these names in the answer."""

    def __init__(self, state: str, *names: str) -> None:
        super().__init__(state)
        self.state, self.names = state, names


def send_download(home: Home, request: Request) -> None:
    """Send the file or folder `path`, or the matches of `pattern` in it, from byte `have` on.

    An empty pattern means none. Standard output gets an answer with the `kind` (file, or tree for a
    tar archive), the size and other properties; then the bytes. Standard error gets signs of life,
    then an answer with the `state`. "whole" has the `digest` of all bytes; `left_out` is the number
    of special files that a tree lacks, and `names` has the first of them. With any other state the
    client must discard the bytes: "differs" (the first `have` bytes do not match the given digest),
    or "absent", "special", "unread" or "changed" with `names`.
    """
    progress = ProgressReport(sys.stderr)
    try:
        answer = _send(os.path.join(home.path, request["path"]), request, progress)
    except Refused as refused:
        answer = {"state": refused.state, "names": refused.names[:_NAMES]}
    except Changed as error:
        answer = {"state": "changed", "names": [error.path]}
    except (FileNotFoundError, NotADirectoryError):
        answer = {"state": "absent", "names": []}
    except PermissionError as error:
        answer = {"state": "unread", "names": [os.fsdecode(error.filename)]}
    sys.stdout.buffer.flush()
    say(answer, sys.stderr)


def _send(path: str, request: Request, progress: ProgressReport) -> Request:
    kind, listed = _listed(path, request["pattern"], progress)
    files = [member for member in listed if member.holds_bytes]
    if unread := [file.path for file in files if not os.access(file.path, os.R_OK)]:
        raise Refused("unread", *unread)
    if kind == "file":
        whole = [file_part(listed[0].path)]
        size, needed = sum(map(len, whole)), sum(map(stored, whole))
    else:
        inodes = {(file.status.st_dev, file.status.st_ino): file for file in files}
        held = [FilePart(file.path, file.status) for file in inodes.values()]
        headers = 1024 * len(listed)
        size, needed = headers + sum(map(len, held)), headers + sum(map(stored, held))

    def parts() -> Iterable[Part]:
        return whole if kind == "file" else archived(_present(listed))

    status, content = listed[0].status, hashlib.sha256()
    try:
        gzip = needed < size or is_compressible(parts())  # holes are sent as zeros
        header = {"kind": kind, "size": size, "stored": needed, "gzip": gzip}
        say({**header, "mode": status.st_mode & 0o777, "modified": int(status.st_mtime)})
        data = _missing(parts(), request, content, progress)
        for chunk in compressed(data) if gzip else data:
            sys.stdout.buffer.write(chunk)
    except FileNotFoundError as error:
        raise Changed(os.fsdecode(error.filename)) from error
    left_out = sorted(os.path.normpath(member.name) for member in listed if member.is_special)
    answer = {"state": "whole", "digest": content.hexdigest()}
    return {**answer, "names": left_out[:_NAMES], "left_out": len(left_out)}


def _listed(path: str, pattern: str, progress: ProgressReport) -> tuple[str, list[Member]]:
    """Return the kind and the members, the last modified at the end."""
    if pattern:
        os.chdir(path)
        kind = "tree"
        roots = [(name, os.path.abspath(name)) for name in sorted(glob.glob(pattern))]
    else:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise Refused("special")
        kind = "tree" if stat.S_ISDIR(mode) else "file"
        roots = [(".", os.path.realpath(path))]
    listed = []
    for root in roots:
        for member in members(*root):
            listed.append(member)
            progress.advance(1)
    if not listed:
        os.listdir(os.getcwd())  # raises if the folder is unreadable, which also matches nothing
        raise FileNotFoundError
    # A download that resumes later then finds the beginning unchanged.
    return kind, sorted(listed, key=lambda member: member.status.st_mtime_ns)


def _present(listed: Iterable[Member]) -> Iterator[Member]:
    """Yield members with their current status, without those that are gone."""
    for name, path, _ in listed:
        with contextlib.suppress(FileNotFoundError):
            yield Member(name, path, os.lstat(path))


def _missing(
    parts: Iterable[Part], request: Request, content: hashlib._Hash, progress: ProgressReport
) -> Iterator[bytes]:
    """Yield the bytes that the client lacks, and hash all bytes.

    Raises `Refused` if the client's bytes differ, and `Changed` if a file changes.
    """
    left = request["have"]
    for part in parts:
        for chunk in _settled(part, progress) if isinstance(part, FilePart) else [part]:
            content.update(chunk[:left])
            if 0 < left <= len(chunk) and content.hexdigest() != request["digest"]:
                raise Refused("differs")
            content.update(chunk[left:])
            progress.advance(len(chunk))
            yield chunk[left:]
            left = max(0, left - len(chunk))
    if left:
        raise Refused("differs")


def _settled(part: FilePart, progress: ProgressReport) -> Iterator[bytes]:
    """Yield the bytes of a file; raise `Changed` if they change meanwhile."""
    first = again = 0
    with open(part.path, "rb") as file:
        for chunk in part.read(file):
            first = zlib.crc32(chunk, first)
            yield chunk
        if os.fstat(file.fileno()).st_mtime_ns != part.modified:
            for chunk in part.read(file):
                again = zlib.crc32(chunk, again)
                progress.advance(len(chunk))
            if again != first:
                raise Changed(part.path)
