"""Downloads from a worker: received beside the target, verified, then moved into place."""

from __future__ import annotations

import fcntl
import hashlib
import os
import posixpath
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import FileIO
from pathlib import Path

from tpukit.agent import contents, placing
from tpukit.agent.archives import Unpacked
from tpukit.errors import BadInput, Fix, NotFound, SecurityRefusal, TpukitError
from tpukit.files.unpack import link_in_the_way, unpack, unwritable
from tpukit.files.upload import SignsOfLife, TransferContext, check_room
from tpukit.ssh import agent_client
from tpukit.ssh.agent_client import AgentAnswer
from tpukit.ssh.client import Connection
from tpukit.ssh.worker import RetryingConnection
from tpukit.text import one_line, shown_path

_HEADER = re.compile(rb"\ntpukit-agent (\{[^\n]*\})\n")
#: Limits for a file's size in bytes, and for a time in seconds before or after 1970.
_MOST_BYTES, _MOST_SECONDS = 1 << 60, 1 << 40
_LONGEST_GREETING = 64 << 10
#: The folders before the first component with a wildcard, and the rest.
_PATTERN = re.compile(r"([^*?\[]*/)?([^/*?\[]*[*?\[].*)", re.DOTALL)
#: The most attempts to read files that change meanwhile.
_PASSES = 3
#: A tree may have this many bytes more than twice the announced size.
_MARGIN = 64 << 20
#: The most names in a notice.
_SHOWN = 3


class NotReadable(TpukitError):
    """The worker's user may not read all of the source; nothing was changed on this machine."""


@dataclass(frozen=True)
class Source:
    """A path or pattern on a worker. The path, not the worker, decides the name of the copy.

    For a pattern, the folders before the first wildcard are not copied. Raises `BadInput` if the
    path gives no name.
    """

    path: str

    def __post_init__(self) -> None:
        nameless = self.name in ("", ".", "..") or ".." in self.pattern.split("/")
        if nameless or "\0" in self.path:
            raise BadInput(
                f"{one_line(self.path)!r} does not name a file or folder",
                fix=Fix(note="name it, as in demo:results"),
            )

    @property
    def name(self) -> str:
        return posixpath.basename(self.path.rstrip("/"))

    @property
    def words(self) -> tuple[str, str]:
        """The folder and the pattern in it, or the path and ""."""
        match = _PATTERN.fullmatch(self.path)
        return (match[1] or ".", match[2]) if match else (self.path, "")

    @property
    def pattern(self) -> str:
        return self.words[1]

    def expects(self, parts: tuple[str, ...]) -> bool:
        """Return True if a name, or a folder above it, matches the pattern as in a shell.

        Wildcards do not match hidden names.
        """
        wanted = [component for component in self.pattern.split("/") if component not in ("", ".")]
        return len(parts) >= len(wanted) and all(
            fnmatchcase(part, pattern) and (pattern[:1] == "." or part[:1] != ".")
            for part, pattern in zip(parts, wanted, strict=False)
        )


def download(
    connection: RetryingConnection,
    source: Source,
    target: Path,
    context: TransferContext,
    *,
    into: bool,
    chosen: Path | None = None,
    sudo: bool = False,
) -> Path:
    """Copy a file, a folder or the matches of a pattern to this machine; return the new path.

    `chosen` is the folder above `target` that the user named; by default it is `target`. If that is
    a link to a file, the file is replaced. Nothing is written through a link below it that leads
    out of it.

    Nothing is changed here before all bytes are verified. Then files of the same names are
    replaced, and other files in the target stay. A file that grows is copied at the length that it
    had when it was opened. An interrupted download resumes if the worker's files are the same.
    `sudo` reads as root. A notice names the files that are left out: links that lead out of the
    folder, pipes, sockets and devices.

    Raises:
        BadInput: another copy to the same place is running.
        NotFound: the worker does not have the path.
        NotReadable: the worker's user may not read all of it.
        SecurityRefusal: the worker sends files that were not requested, or that lead out of the
            target.
        TpukitError: the files change faster than they are read, or cannot be written here; or a
            link leads out of the chosen folder.
    """
    place = (
        target / source.name if (into or os.path.isdir(target)) and not source.pattern else target
    )
    for folder in filter(os.path.isdir, (target, place)):
        if not folder.resolve().is_relative_to((chosen or target).resolve()):
            raise link_in_the_way(folder)
    named = place
    if place == (chosen or target) and not os.path.isdir(place):
        place = Path(os.path.realpath(place))  # a link that the user names is followed, as by `cp`
    try:
        placing.check_replaceable(str(place))
    except OSError as error:
        raise unwritable(error) from error
    digest = hashlib.sha256(f"{source.path}\0{place.name}".encode("utf-8", "surrogateescape"))
    part = place.parent / f".tpukit-{digest.hexdigest()[:32]}.part"
    with _opened(part) as file:
        reception = _Reception(connection, source, file, context, sudo)
        try:
            reception.complete()
            links, copied = _put(part, place, source, reception)
            _tell(context, place, links, len(links), "as links that lead out of it")
            if copied:
                context.on_notice(f"{copied} hard links became files of their own")
            special, count = reception.left_out
            _tell(context, place, special, count, "as neither file, folder nor link")
        except TpukitError as error:
            if isinstance(error, SecurityRefusal):
                reception.drop()
            elif os.fstat(file.fileno()).st_size:
                kept = f"the received part, in {shown_path(part)}: the same command goes on there"
                error.exists = (*error.exists, kept)
            raise
    return named


class _Broken(TpukitError):
    """The received bytes are unusable."""


@dataclass
class _Reception:
    """Receives the bytes of one source into a file; reconnects after a loss.

    Afterwards `kind` is "file", with its `mode` and the time when it was `modified`, or "tree", and
    `left_out` has the first names that are left out, and their number.
    """

    _connection: RetryingConnection
    _source: Source
    _file: FileIO
    _context: TransferContext
    _sudo: bool

    def __post_init__(self) -> None:
        self._shown = one_line(self._source.path)
        self._hash = contents.hashed(self._file)
        self._have, self._most = self._file.tell(), 0
        self.left_out: tuple[list[str], int] = ([], 0)
        self._due = 0  # announced bytes that have not arrived yet

    def complete(self) -> None:
        """Receive and verify all bytes; start again a few times if files change meanwhile."""
        for _ in range(_PASSES):
            try:
                self._connection.retry(self._receive)
                return
            except _Broken as error:
                self.drop()
                last = error
        raise last

    def drop(self) -> None:
        """Discard all received bytes."""
        self._file.truncate(0)
        self._have, self._hash = 0, hashlib.sha256()

    def _receive(self, connection: Connection) -> None:
        self.kind, self._before, self._label = "", b"", connection.label
        signs = SignsOfLife(self._connection, connection.label, 3 * self._have + _MARGIN)
        goes_on = self._have > 0
        path, pattern = self._source.words
        request = {"path": path, "pattern": pattern, "have": self._have}

        def on_output(name: str, chunk: bytes) -> None:
            if name == "stdout":
                self._take(chunk)
            else:
                signs.take(chunk)
            signs.most = 3 * max(self._have, self._most) + _MARGIN

        done = agent_client.run(
            connection,
            "send_download",
            {**request, "digest": self._hash.hexdigest()},
            on_output=on_output,
            deadline=self._connection.deadline,
            keep=1 << 16,
            root="yes" if self._sudo else "no",
        )
        said = agent_client.answers_in(connection.label, done.stderr)
        answer = next((answer for answer in said if answer.has("state")), None)
        if answer is None:
            raise TpukitError(
                f"{connection.label} could not read {self._shown}", reason=done.reason
            )
        if answer.text("state") == "differs" and goes_on:
            self.drop()
            self._receive(connection)
        else:
            self._judge(answer)

    def _judge(self, answer: AgentAnswer) -> None:
        """Check the worker's last answer; raise its error unless all bytes are verified."""
        state = answer.text("state")
        if state == "whole" and self.kind and answer.text("digest") == self._hash.hexdigest():
            self._file.truncate(self._have)  # it may end with a hole
            self._context.counter.expect(-self._due)
            self.left_out = answer.texts("names"), answer.number("left_out")
            return
        names = "\n".join(map(one_line, answer.texts("names")))
        if state == "absent":
            raise NotFound(f"there is no {self._shown} on the worker")
        if state == "unread":
            raise NotReadable(f"the worker's user may not read all of {self._shown}", why=names)
        if state == "special":
            raise TpukitError(f"{self._shown} is no file or folder: it cannot be copied")
        if state == "changed":
            raise _Broken(
                f"{names} was written to while it was read, {_PASSES} times",
                fix=Fix(note="copy it on the worker first, and then that copy"),
            )
        raise self._broken()

    def _take(self, data: bytes) -> None:
        """Take bytes of standard output; skip a login script's output before the header."""
        if not self.kind:
            self._before += data
            header = _HEADER.search(self._before)
            self._before = self._before[-_LONGEST_GREETING:]
            if header is None:
                return
            data = header.string[header.end() :]
            self._begin(agent_client.parsed(self._label, header[1]))
        try:
            for chunk in contents.inflated(data, self._inflater) if self._inflater else (data,):
                self._write(chunk)
        except zlib.error as error:
            raise TpukitError("the worker sent an invalid gzip stream") from error

    def _begin(self, header: AgentAnswer) -> None:
        kind, size, stored = header.text("kind"), header.number("size"), header.number("stored")
        self.mode, self.modified = header.number("mode"), header.number("modified")
        makes_sense = kind in ("file", "tree") and 0 <= stored <= size < _MOST_BYTES
        if not makes_sense or abs(self.modified) > _MOST_SECONDS or self.mode < 0:
            raise self._broken()
        self.kind, self.sparse = kind, stored < size
        self._inflater = contents.inflater() if header.flag("gzip") else None
        # The announced size of a tree is an estimate.
        self._most = size if kind == "file" else 2 * size + _MARGIN
        part = Path(str(self._file.name))
        check_room(
            f"{self._shown} here",
            needed=max(0, stored - self._have) + (kind == "tree") * stored,
            free=shutil.disk_usage(part).free,
            folder=shown_path(part.parent),
        )
        self._context.counter.expect(size - self._have - self._due)
        self._due = size - self._have

    def _write(self, data: bytes) -> None:
        if self._have + len(data) > self._most:
            raise self._broken()
        try:
            contents.write(self._file, data, self._have, self.sparse)
        except OSError as error:
            raise unwritable(error, Path(str(self._file.name))) from error
        self._hash.update(data)
        self._have += len(data)
        self._due -= len(data)
        self._context.counter.advance(len(data))
        self._connection.progressed()

    def _broken(self) -> _Broken:
        return _Broken(
            f"the received bytes of {self._shown} differ from the worker's announcement",
            why="something on the way is broken",
        )


@contextmanager
def _opened(part: Path) -> Iterator[FileIO]:
    """Open the file for the received bytes; unless empty, it stays for a later attempt."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        made = not part.parent.exists()
        part.parent.mkdir(parents=True, exist_ok=True)
        file = FileIO(part, "rb+", opener=lambda path, _: os.open(path, flags, 0o600))
    except OSError as error:
        raise unwritable(error, part) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(part.stat(), os.fstat(file.fileno())):
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):  # or it has just been put in place
            raise BadInput("another copy of the same is under way to the same place") from None
        try:
            yield file
        finally:
            if not os.fstat(file.fileno()).st_size:
                part.unlink(missing_ok=True)
                with suppress(OSError):
                    part.parent.rmdir() if made else None


def _tell(
    context: TransferContext, folder: Path, names: Sequence[str], count: int, what: str
) -> None:
    """Give a notice with the names that are left out of a folder."""
    if names:
        more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
        shown = ", ".join(map(one_line, names[:_SHOWN])) + more
        context.on_notice(f"left out of {shown_path(folder)}, {what}: {shown}")


def _put(part: Path, place: Path, source: Source, arrived: _Reception) -> Unpacked:
    if arrived.kind == "tree":
        unpacked = unpack(part, place, source.expects, sparse=arrived.sparse)
        part.unlink()
        return unpacked
    try:
        part.chmod(arrived.mode & 0o755 | 0o600)
        os.utime(part, (arrived.modified, arrived.modified))
        part.replace(place)
    except OSError as error:
        raise unwritable(error, place) from error
    return Unpacked([], 0)
