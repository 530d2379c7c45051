"""A file, a folder or what a pattern matches in a folder, sent in one pass.

A file is sent as long as it is when it is opened: one may grow meanwhile. What of it was read is
read again if it has changed, and has to be the same.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import shutil
import stat
import sys
import tarfile
import zlib
from typing import IO, BinaryIO, Iterator, NamedTuple, cast

from tpukit.agent.main import Home, Request, say
from tpukit.agent.progress import ProgressReport
from tpukit.agent.pushed_trees import is_state_folder
from tpukit.agent.trees import BLOCK, CHUNK

SAMPLE = 4 << 20
#: What shrinks less than this is sent as it is.
WORTHWHILE = 0.9
#: Bytes of a file that says it has none, as those of /proc do.
UNTOLD = 64 << 20
#: Names in an answer.
NAMES = 20


class Refused(Exception):
    """A state to answer, and the names that belong to it."""

    def __init__(self, state: str, *names: str) -> None:
        super().__init__(state)
        self.state, self.names = state, names


class Member(NamedTuple):
    """Something to send: its name in the archive, its path, and how it was when it was listed."""

    name: str
    path: str
    status: os.stat_result

    @property
    def holds_bytes(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def inode(self) -> tuple[int, int]:
        return self.status.st_dev, self.status.st_ino

    @property
    def is_special(self) -> bool:
        kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
        return not any(is_kind(self.status.st_mode) for is_kind in kinds)


def send_download(home: Home, request: Request) -> None:
    """Send what is at `path`, or what `pattern` matches in there, except the first `have` bytes.

    An empty pattern stands for none. Standard output gets an answer with the `kind`, file or tree
    (a tar archive), and what the client has to know of it; then the bytes. Standard error gets
    signs of life, then an answer with the `state`: whole, with the `digest` of all bytes; or, with
    nothing to be kept, differs (the first `have` bytes are not those of the digest given), absent,
    special, unread or changed, with `names`. A whole tree lacks so many as are `left_out`, since
    they hold no bytes, and `names` has the first of them.
    """
    progress = ProgressReport(sys.stderr)
    try:
        answer = _answer(os.path.join(home.path, request["path"]), request, progress)
    except Refused as refused:
        answer = {"state": refused.state, "names": refused.names[:NAMES]}
    except (FileNotFoundError, NotADirectoryError):
        answer = {"state": "absent", "names": []}
    except PermissionError as error:
        answer = {"state": "unread", "names": [os.fsdecode(error.filename)]}
    sys.stdout.buffer.flush()
    say(answer, sys.stderr)


def _answer(path: str, request: Request, progress: ProgressReport) -> Request:
    kind, members = _content(path, request["pattern"], progress)
    files = [member.path for member in members if member.holds_bytes]
    if unread := [path for path in files if not os.access(path, os.R_OK)]:
        raise Refused("unread", *unread)
    left_out = [os.path.normpath(member.name) for member in members if member.is_special]
    digest = _send(Sender(request, progress), kind, members)
    names = left_out[:NAMES]
    return {"state": "whole", "digest": digest, "names": names, "left_out": len(left_out)}


class Sender:
    """Sends what is written to it from an offset on, and hashes all."""

    def __init__(self, request: Request, progress: ProgressReport) -> None:
        self.have, self._given, self.progress = request["have"], request["digest"], progress
        self._header: Request = {}
        self._hash, self._size = hashlib.sha256(), 0
        self._held: bytearray | None = bytearray()
        self._squeezer: zlib._Compress | None = None

    def describe(self, kind: str, size: int, stored: int, status: os.stat_result) -> None:
        """Note what the header says: there are holes if fewer bytes are `stored` than `size`."""
        mode = stat.S_IMODE(status.st_mode) & 0o777
        self._header = {"kind": kind, "size": size, "stored": stored, "mode": mode}
        self._header["modified"] = int(status.st_mtime)

    def tell(self) -> int:
        """Return how many bytes were written, as tarfile asks."""
        return self._size

    def write(self, data: bytes) -> int:
        """Hash bytes, and send those that the client does not have.

        Raises `Refused` if the client has others.
        """
        ahead = max(0, self.have - self._size)
        self._take(data[:ahead])
        if ahead and self._size == self.have and self._hash.hexdigest() != self._given:
            raise Refused("differs")
        self._take(data[ahead:])
        if self._held is None:
            self._put(data[ahead:])
        else:
            self._held += data[ahead:]
            if len(self._held) >= SAMPLE:
                self._begin()
        return len(data)

    def finish(self) -> str:
        """Send what is left; return the digest of all. Raises `Refused` as `write` does."""
        if self._size < self.have:
            raise Refused("differs")
        if self._held is not None:
            self._begin()
        sys.stdout.buffer.write(self._squeezer.flush() if self._squeezer else b"")
        return self._hash.hexdigest()

    def _take(self, data: bytes) -> None:
        self._hash.update(data)
        self._size += len(data)
        self.progress.advance(len(data))

    def _begin(self) -> None:
        sample, self._held = bytes(self._held or b""), None
        shrinks = len(zlib.compress(sample[:SAMPLE], 1)) < WORTHWHILE * len(sample[:SAMPLE])
        # Holes are zeros on their way.
        shrinks = shrinks or self._header["stored"] < self._header["size"]
        self._squeezer = zlib.compressobj(1, zlib.DEFLATED, 31) if shrinks else None
        say({**self._header, "gzip": shrinks})
        self._put(sample)

    def _put(self, data: bytes) -> None:
        sys.stdout.buffer.write(self._squeezer.compress(data) if self._squeezer else data)


class Snapshot:
    """An open file as long as it was, which knows what was read of it."""

    def __init__(self, file: BinaryIO, progress: ProgressReport) -> None:
        self.status = os.fstat(file.fileno())
        self._file, self._progress, self._sum, self._position = file, progress, 0, 0

    def read(self, size: int = CHUNK) -> bytes:
        """Read so many bytes, fewer at the end; raise `Refused` if the file became shorter."""
        size = min(size, self.status.st_size - self._position)
        data = self._file.read(size)
        if len(data) < size:
            raise Refused("changed", self._file.name)
        self._sum = zlib.crc32(data, self._sum)
        self._position += size
        return data

    def check(self) -> None:
        """Read it again if it was written to, and raise `Refused` if that is not the same."""
        if os.fstat(self._file.fileno()).st_mtime_ns != self.status.st_mtime_ns:
            again = Snapshot(self._file, self._progress)
            again.status = self.status
            self._file.seek(0)
            while data := again.read(CHUNK):
                self._progress.advance(len(data))
            if again._sum != self._sum:
                raise Refused("changed", self._file.name)


def _content(path: str, pattern: str, progress: ProgressReport) -> tuple[str, list[Member]]:
    """Return the kind and the members, what changed last at the end."""
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
    members = [member for name, root in roots for member in _tree(name, root, progress)]
    if not members:
        os.listdir(os.getcwd())  # if it cannot be read, nothing matches either
        raise FileNotFoundError
    # A download that goes on later finds the beginning as it was.
    return kind, sorted(members, key=lambda member: member.status.st_mtime_ns)


def _tree(name: str, path: str, progress: ProgressReport) -> Iterator[Member]:
    """Yield what is there and all that is below it, except what is removed meanwhile."""
    try:
        status = os.lstat(path)
        yield Member(name, path, status)
        progress.advance(1)
        for inside in sorted(os.listdir(path)) if stat.S_ISDIR(status.st_mode) else ():
            below = os.path.join(path, inside)
            if not is_state_folder(below):
                yield from _tree(os.path.join(name, inside), below, progress)
    except FileNotFoundError:
        return


def _stored(status: os.stat_result) -> int:
    """Return the bytes that a file needs on a disk, fewer than its size if it has holes."""
    stored = status.st_blocks * 512
    return stored if status.st_size - stored >= BLOCK else status.st_size


def _send(sender: Sender, kind: str, members: list[Member]) -> str:
    if kind == "file":
        with open(members[0].path, "rb") as file:
            snapshot = Snapshot(file, sender.progress)
            status = snapshot.status
            sender.describe(kind, status.st_size, _stored(status), status)
            if not status.st_size:
                sender.write(file.read(UNTOLD))
            shutil.copyfileobj(snapshot, sender, CHUNK)
            snapshot.check()
        return sender.finish()
    files = {member.inode: member.status for member in members if member.holds_bytes}.values()
    headers = 1024 * len(members)
    size = headers + sum(status.st_size for status in files)
    sender.describe(kind, size, headers + sum(map(_stored, files)), members[0].status)
    first_names: dict[tuple[int, int], str] = {}
    out = cast("IO[bytes]", sender)
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.GNU_FORMAT) as archive:
        for member in members:
            archive.members = []  # type: ignore[attr-defined]  # it keeps all that it has written
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                _add(archive, member, first_names, sender.progress)
    return sender.finish()


def _add(
    archive: tarfile.TarFile,
    member: Member,
    first_names: dict[tuple[int, int], str],
    progress: ProgressReport,
) -> None:
    """Add a member as it is now; a file that has come under another name comes as a hard link."""
    info, mode = tarfile.TarInfo(member.name), member.status.st_mode
    info.mode, info.mtime = stat.S_IMODE(mode) & 0o777, int(member.status.st_mtime)
    if stat.S_ISDIR(mode):
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    elif stat.S_ISLNK(mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(member.path)
        archive.addfile(info)
    elif member.inode in first_names and os.path.samestat(os.lstat(member.path), member.status):
        info.type, info.linkname = tarfile.LNKTYPE, first_names[member.inode]
        archive.addfile(info)
    elif member.holds_bytes:
        with open(member.path, "rb", buffering=0) as file:
            snapshot = Snapshot(file, progress)
            info.size, info.mtime = snapshot.status.st_size, int(snapshot.status.st_mtime)
            archive.addfile(info, snapshot)
            snapshot.check()
        if snapshot.status.st_nlink > 1 and os.path.samestat(snapshot.status, member.status):
            first_names[member.inode] = member.name
