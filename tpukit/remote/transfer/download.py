"""What a worker sends: measured first, received beside the target, verified, then put in place."""

from __future__ import annotations

import fcntl
import hashlib
import os
import posixpath
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import BufferedRandom
from pathlib import Path

from tpukit.errors import BadInput, Fix, NotFound, TpukitError
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.worker import RetryingConnection
from tpukit.remote.programs import program_line
from tpukit.remote.transfer.payload import Inflation, worthwhile
from tpukit.remote.transfer.unpack import unpack
from tpukit.remote.transfer.upload import TransferContext
from tpukit.text import one_line, shown_path

_PROGRAM = "remote/transfer/download.sh"
_LISTING = re.compile(
    rb"^tpukit-listing (absent|file|program|folder|several) "
    rb"([0-9]{1,18}) ([0-9a-f]{64}|-) ([0-9]+)$",
    re.MULTILINE,
)
_SAMPLE = 4 << 20
_LONGEST_GREETING = 64 << 10
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Source:
    """A path on a worker; its last component names what arrives, never the worker."""

    path: str

    @property
    def name(self) -> str:
        return posixpath.basename(self.path.rstrip("/"))

    @property
    def pattern(self) -> bool:
        return _PATTERN.search(self.path) is not None

    @property
    def words(self) -> tuple[str, str]:
        return self.path, "pattern" if self.pattern else "plain"

    def expects(self, name: str) -> bool:
        """Tell whether the pattern matches a name as a shell's would: no hidden one unasked."""
        hidden = name.startswith(".") and not self.name.startswith(".")
        return fnmatchcase(name, self.name) and not hidden

    def check(self) -> None:
        """Raise `BadInput` where what arrives would have no name."""
        if self.name in ("", ".", "..") or "\0" in self.path:
            raise BadInput(
                f"{one_line(self.path)!r} does not name a file or folder",
                fix=Fix(note="name it, as in demo:results"),
            )


@dataclass(frozen=True)
class Listing:
    """What a worker has at a path: its kind, and the size and SHA-256 of what it would send."""

    kind: str
    size: int
    digest: str
    sample: int

    @property
    def archive(self) -> bool:
        return self.kind in ("folder", "several")

    @property
    def coding(self) -> str:
        return "gzip" if worthwhile(self.sample, min(self.size, _SAMPLE)) else "plain"


def download(
    connection: RetryingConnection,
    source: Source,
    target: Path,
    context: TransferContext,
    *,
    into: bool,
) -> Path:
    """Copy a file, a folder or what a pattern matches to this machine; return where it is.

    What is there already stays, files of the same names are replaced. An interrupted download goes
    on where it stopped, as long as the worker still has the same.

    Raises:
        BadInput: the source has no name, or another copy to the same place is under way.
        NotFound: the worker has nothing there.
        SecurityRefusal: it sends what was not asked for, or what leads out of the target.
        TpukitError: what arrived is not what was announced, or there is no room for it.
    """
    source.check()
    listing = _listing(connection, source)
    place = target / source.name if (into or target.is_dir()) and not source.pattern else target
    part = (place if source.pattern else place.parent) / f".tpukit-{listing.digest[:32]}.part"
    with _opened(part) as file:
        missing = listing.size - file.seek(0, os.SEEK_END)
        _check_room(part, missing + listing.archive * listing.size)
        context.counter.expect(missing)
        try:
            _Reception(connection, source, listing, file, context).complete()
        except _Changed:
            part.unlink()
            raise
        _put(part, place, source, listing)
    return place


class _Changed(TpukitError):
    """What arrived is not what was announced."""


class _Reception:
    """The bytes of one listing on their way into a file."""

    def __init__(
        self,
        connection: RetryingConnection,
        source: Source,
        listing: Listing,
        file: BufferedRandom,
        context: TransferContext,
    ) -> None:
        self._connection = connection
        self._source = source
        self._listing = listing
        self._file = file
        self._context = context
        self._have = file.seek(0, os.SEEK_END)

    def complete(self) -> None:
        """Receive until all is there, over as many connections as it takes, and verify it."""
        if self._have < self._listing.size:
            self._connection.retry(self._receive)
        self._file.flush()
        self._file.seek(0)
        if hashlib.file_digest(self._file, "sha256").hexdigest() != self._listing.digest:
            raise self._changed()

    def _receive(self, connection: Connection) -> None:
        coding = self._listing.coding
        stream = _Stream(coding)

        def on_output(name: str, chunk: bytes) -> None:
            for data in stream.chunks(chunk) if name == "stdout" else ():
                self._write(data)

        words = ["send", *self._source.words, str(self._have), coding]
        connection.run(
            program_line(_PROGRAM, words=words),
            on_output=on_output,
            deadline=self._context.deadline,
            keep=4096,
        )
        if self._have < self._listing.size:
            raise self._changed()

    def _write(self, data: bytes) -> None:
        if self._have + len(data) > self._listing.size:
            raise self._changed()
        self._file.write(data)
        self._have += len(data)
        self._context.counter.advance(len(data))
        self._connection.progressed()

    def _changed(self) -> _Changed:
        return _Changed(
            f"what {one_line(self._source.path)} holds is not what the worker announced",
            why="it changed while it was copied, or something on the way is broken",
            fix=Fix(note="copy it again when nothing writes to it"),
        )


class _Stream:
    """What follows our program's mark on standard output: a login script may write before it."""

    _MARK = b"tpukit-bytes\n"

    def __init__(self, coding: str) -> None:
        self._before: bytes | None = b""
        self._inflation = Inflation() if coding == "gzip" else None

    def chunks(self, data: bytes) -> Iterator[bytes]:
        if self._before is not None:
            before, mark, data = (self._before + data).partition(self._MARK)
            self._before = None if mark else before[-_LONGEST_GREETING:]
            if not mark:
                return
        if self._inflation is None:
            yield data
        else:
            yield from self._inflation.chunks(data)


def _listing(connection: RetryingConnection, source: Source) -> Listing:
    done = connection.run(program_line(_PROGRAM, words=["measure", *source.words]))
    found = _LISTING.search(done.stdout)
    if found is None:
        raise TpukitError(f"a worker could not read {one_line(source.path)}", reason=done.reason)
    listing = Listing(found[1].decode(), int(found[2]), found[3].decode(), int(found[4]))
    if listing.kind == "absent":
        raise NotFound(f"there is no {one_line(source.path)} on the worker")
    return listing


@contextmanager
def _opened(part: Path) -> Iterator[BufferedRandom]:
    """Open the file that keeps what has arrived; it stays after an interruption, to be gone on."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(part, flags, 0o600), "r+b")
    except OSError as error:
        raise TpukitError(
            f"cannot write {shown_path(part)}", reason=error.strerror or ""
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput("another copy of the same is under way to the same place") from None
        yield file


def _put(part: Path, place: Path, source: Source, listing: Listing) -> None:
    try:
        if listing.kind == "folder":
            unpack(part, place)
        elif listing.kind == "several":
            unpack(part, place, source.expects)
        else:
            part.chmod(0o755 if listing.kind == "program" else 0o644)
            part.replace(place)
    except OSError as error:
        raise TpukitError(
            f"cannot write {shown_path(place)}", reason=error.strerror or ""
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _check_room(place: Path, size: int) -> None:
    free = shutil.disk_usage(place.parent).free
    if size > free:
        raise TpukitError(f"there is no room for {size} bytes", reason=f"{free} bytes are free")
