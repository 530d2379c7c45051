"""Detached jobs: commands that run once on a worker, even if the connection is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tpukit.clock import Deadline, Patience
from tpukit.errors import BadInput, DeadlinePassed, Fix, NameTaken, TpukitError, TransportFailed
from tpukit.ssh import agent_client, worker_files
from tpukit.ssh.agent_client import AgentAnswer
from tpukit.ssh.worker import RetryingConnection
from tpukit.text import one_line, sanitize

if TYPE_CHECKING:
    from tpukit.ssh.client import Connection

#: The default limit of a job's log in bytes; it keeps the newest.
LOG_LIMIT = 1 << 30
_NAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,199}")
_PART = re.compile(rb"tpukit-log (\d{1,18}) (\d{1,9})\n")
#: The most bytes of the head of a part.
_LONGEST_HEAD = 64
#: The most lines of the log in a result, and the most bytes of a line; a longer line is split.
_TAIL_LINES, _LONGEST_LINE = 50, 64 << 10
#: The number of signs of life that a worker sends within the client's patience.
_BEATS = 4

OnLine = Callable[[str], None]
#: Gets bytes of a log.
OnLog = Callable[[bytes], None]


class WorkerSilent(TransportFailed):
    """A connected worker has sent nothing for too long."""


class JobLost(TpukitError):
    """A job's process is gone without an exit status: the worker restarted, or it was killed."""


@dataclass(frozen=True)
class JobRequest:
    """The work of a job.

    `command` is a program for sh. `environment` has shell lines that run before it; no file keeps
    them. `about` is a JSON object with the text for listings.
    """

    command: str
    environment: str = ""
    about: str = ""
    limit: int = LOG_LIMIT  #: the most bytes of its log


@dataclass(frozen=True)
class LogPart:
    """A part of a log: all of it, or its last `tail` lines; with `on` until the job ends.

    With a `mark`, the tail begins at the last `tail` lines that begin with it.
    """

    tail: int | None = None
    on: bool = True
    mark: str = ""


WHOLE_LOG = LogPart()


@dataclass(frozen=True)
class JobResult:
    """The result of a job. `tail` has the last lines of its log, and a note on dropped output."""

    status: int
    tail: tuple[str, ...]
    log_path: str


@dataclass(eq=False)
class DetachedJob:
    """A job on a worker, and its log; reconnects after a loss.

    `connect` opens a connection; the job closes it. `on_line` gets every line of the log once,
    sanitized, and `on_log` its bytes. `notice` gets a message about a lost connection, and about
    output that was dropped because the disk was full. `asked` becomes True when a request is sent.

    Every method raises `DeadlinePassed` if the job still runs at the deadline. It raises
    `TransportFailed` if a lost worker makes no progress for `patience` seconds, or if a connected
    worker sends nothing for so long.
    """

    connect: Callable[[], Connection]
    name: str
    deadline: Deadline
    on_line: OnLine | None = None
    on_log: OnLog | None = None
    notice: OnLine = lambda line: None
    patience: float = 60.0
    asked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadInput(
                f"{one_line(self.name)!r} cannot name a job",
                fix=Fix(note="use a-z, 0-9, '.', '_' and '-'"),
            )
        self._label = self.name.partition("@")[0]  # the other part is the worker
        self._log_path = f"~/{worker_files.JOBS}/{self.name}/log"
        self._connection = RetryingConnection(self.connect, self.deadline)
        self._log = _Log(self.on_line, self.on_log, self.notice)

    def run(self, request: JobRequest) -> JobResult:
        """Start the job unless it exists, follow its log to the end and return its result.

        Raises:
            NameTaken: it exists with another command.
            JobLost: it died without an exit status; it is not started again.
        """
        with self._connection:
            self._start(request)
            result = self._follow(WHOLE_LOG)
            assert result, "the log is followed to the end"
            return result

    def start(self, request: JobRequest) -> None:
        """Start the job unless it exists; raise `NameTaken` as `run` does."""
        with self._connection:
            self._start(request)

    def follow(self, part: LogPart = WHOLE_LOG) -> JobResult | None:
        """Pass on a part of the log, and return the job's result; None if it still runs.

        Raises `JobLost` as `run` does.
        """
        with self._connection:
            return self._follow(part)

    def _start(self, request: JobRequest) -> None:
        # If the answer is lost, the repeated request finds the job of the first one.
        if self._ask("start_job", asdict(request)).text("state") == "other":
            raise NameTaken(f"job {self._label} is there already, with another command")

    def _follow(self, part: LogPart) -> JobResult | None:
        """Pass on the log, and return the job's result; None if it still runs."""
        answer = self._ask("follow_job", {**asdict(part), "beat": self.patience / _BEATS})
        self._log.finish()
        state = answer.text("state")
        gaps = []
        if answer.has("dropped") and (dropped := answer.number("dropped")):
            gaps = [f"{dropped} bytes of its output were dropped: No space left on device"]
            self.notice(gaps[0])
        if state == "finished":
            tail = (*self._log.tail, *gaps)
            return JobResult(answer.number("status"), tail, self._log_path)
        if state == "running":
            return None
        gone = "its folder is not there: it was removed, or the worker was made anew"
        dead = "its process is gone without an exit status: the worker restarted, or it was killed"
        raise JobLost(
            f"job {self._label} was lost",
            why=gone if state == "absent" else dead,
            details={"log_path": self._log_path, "log_tail": list(self._log.tail)},
        )

    def _ask(self, verb: str, words: dict[str, Any]) -> AgentAnswer:
        """Return the worker's answer to a request; reconnect after losses within `patience`.

        Parts of the log that come first are passed on. After a loss, the log continues at the
        current offset.
        """
        patience = self.deadline.within(self.patience)
        try:
            while True:
                connection = self._connection.connection  # `connect` has its own retries
                offset, begun = self._log.offset, self.deadline.clock.monotonic()
                try:
                    return self._ask_over(connection, verb, words)
                except WorkerSilent:
                    self._connection.close()
                    raise
                except TransportFailed as error:
                    self._connection.close()
                    lasted = self.deadline.clock.monotonic() - begun
                    if self._log.offset != offset or lasted > self.patience:
                        patience = self.deadline.within(self.patience)
                    self.deadline.check("the job still runs")
                    if patience.passed():
                        raise
                    self.notice(f"lost, connecting again ({one_line(error.summary())})")
                    self.deadline.clock.sleep(min(1.0, patience.remaining()))
        except DeadlinePassed as error:
            raise DeadlinePassed(
                f"job {self._label} did not end in time",
                exists=(f"job {self._label} on the worker, log {self._log_path}",),
            ) from error

    def _ask_over(self, connection: Connection, verb: str, words: dict[str, Any]) -> AgentAnswer:
        alive = Patience(self.deadline, self.patience)

        def feed(stream: str, chunk: bytes) -> None:
            before = self._log.offset
            is_part = stream == "stdout" and self._log.feed(chunk)
            if self._log.offset != before or (is_part and words.get("on")):
                alive.renew()

        request = {"job": self.name, "offset": self._log.offset, **words}
        self._log.begin()
        self.asked = True
        try:
            done = agent_client.run(
                connection, verb, request, on_output=feed, deadline=alive, keep=_LONGEST_LINE
            )
        except DeadlinePassed as error:
            if self.deadline.passed():
                raise
            what = f"{connection.label} answers nothing"
            raise WorkerSilent(what, reason=f"for {self.patience:g} s") from error
        return agent_client.answer(
            connection.label, done, f"{connection.label} could not keep a job"
        )


@dataclass(eq=False)
class _Log:
    """Passes on the bytes and lines of a log, and counts the offset.

    It gets a worker's output in pieces of any size: parts of the log, with other text around them.
    """

    _on_line: OnLine | None
    _on_log: OnLog | None
    _notice: OnLine
    offset: int | None = None
    _partial: bytes = b""

    def __post_init__(self) -> None:
        self._last = bytearray()

    def begin(self) -> None:
        """Prepare for another answer."""
        self._rest, self._left = b"", 0

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(sanitize(bytes(self._last)).splitlines()[-_TAIL_LINES:])

    def feed(self, chunk: bytes) -> bool:
        """Take a piece of output; return True if it contains bytes of a part."""
        is_part = self._left > 0
        self._rest += chunk
        while self._rest:
            if not self._left:
                head = _PART.search(self._rest)
                if not head:  # the output of a login script, or of a broken worker
                    self._rest = self._rest[-_LONGEST_HEAD:]
                    return is_part
                begins, self._left = map(int, head.groups())
                if self.offset is not None and begins > self.offset:
                    self._notice(f"{begins - self.offset} bytes of its log were dropped before")
                self._rest, self.offset = self._rest[head.end() :], begins
                is_part = True
            data, self._rest = self._rest[: self._left], self._rest[self._left :]
            self._left -= len(data)
            self._hand_on(data)
        return is_part

    def _hand_on(self, data: bytes) -> None:
        if not data:
            return
        self.offset = (self.offset or 0) + len(data)
        self._last += data
        del self._last[:-_LONGEST_LINE]
        if self._on_log:
            self._on_log(data)
        self._hand_on_lines(data)

    def finish(self) -> None:
        """Pass on a last line without an end."""
        if self._partial:
            self._hand_on_lines(b"\n")

    def _hand_on_lines(self, data: bytes) -> None:
        if not self._on_line:
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _LONGEST_LINE:
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            # Each update of a progress bar becomes a line.
            for part in sanitize(line.rstrip(b"\r")).split("\n"):
                self._on_line(part)
