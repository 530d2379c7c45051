"""Detached jobs: a command that runs once on a worker, whatever becomes of the connection."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tpukit.clock import Deadline, Patience
from tpukit.errors import BadInput, DeadlinePassed, Fix, NameTaken, TpukitError, TransportFailed
from tpukit.remote import agent_client, worker_files
from tpukit.remote.agent_client import AgentAnswer
from tpukit.remote.connection.worker import RetryingConnection
from tpukit.text import one_line, sanitize

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

#: Bytes of its log that a job keeps, the newest ones.
LOG_LIMIT = 1 << 30
_NAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,199}")
_PART = re.compile(rb"tpukit-log (\d{1,18}) (\d{1,9}) (\d{1,12})\n")
#: Bytes of the longest head of a part.
_LONGEST_HEAD = 64
#: Lines of the log that a result has, of so many bytes at most; a longer line is several.
_TAIL_LINES, _LONGEST_LINE = 50, 64 << 10
#: Signs of life that a worker gives while it is waited for.
_BEATS = 4

OnLine = Callable[[str], None]
#: Gets bytes of a log, and when they were written (seconds since the epoch) where that was asked.
OnLog = Callable[[bytes, int], None]


class WorkerSilent(TransportFailed):
    """A worker that is connected has said nothing for too long."""


class JobLost(TpukitError):
    """A job's process is gone and left no exit status: the worker restarted, or it was killed."""


@dataclass(frozen=True)
class JobRequest:
    """What a job is to do.

    `command` is a program for sh, `environment` shell lines before it, which no file keeps. `about`
    is what listings show, a JSON object.
    """

    command: str
    environment: str = ""
    about: str = ""
    limit: int = LOG_LIMIT  #: bytes of its log that are kept


@dataclass(frozen=True)
class LogPart:
    """Which part of a log: all of it, its last lines, or what was written since a time.

    `since` are seconds of the worker's clock, since the epoch or, below zero, before now. `times`
    asks for the time with each part, `on` for what is written until the job ends.
    """

    tail: int | None = None
    since: float | None = None
    times: bool = False
    on: bool = True


WHOLE_LOG = LogPart()


@dataclass(frozen=True)
class JobResult:
    """How a job ended. `tail` are the last lines of its log, sanitized, and what it lacks."""

    status: int
    tail: tuple[str, ...]
    log_path: str


@dataclass(eq=False)
class DetachedJob:
    """A job on a worker, and its log, over as many connections as it takes.

    `connect` opens a connection, and another one after a loss; each is closed here. `on_line` gets
    every line of the log once, sanitized, from the beginning also of a job that was there before;
    `on_log` its bytes. `notice` is told of losses, and of output that no disk had room for. If the
    worker was lost, and so many seconds of `patience` brought nothing, that is raised, and so it is
    if a connected worker says nothing for so long. `asked` becomes true when a worker was asked for
    something. Every method raises `DeadlinePassed` if the job goes on running, and
    `TransportFailed` if the worker is out of reach.
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
        """Start the job unless it is there, follow its log to the end and return how it ended.

        Raises:
            NameTaken: it is there with another command.
            JobLost: it died without an exit status; it is not started again.
        """
        with self._connection:
            self._start(request)
            result = self._follow(WHOLE_LOG)
            assert result, "it is followed to the end"
            return result

    def start(self, request: JobRequest) -> None:
        """Start the job unless it is there, and leave it; raise `NameTaken` as `run` does."""
        with self._connection:
            self._start(request)

    def follow(self, part: LogPart = WHOLE_LOG) -> JobResult | None:
        """Hand on a part of the log, and return how the job ended; None where it runs.

        Raises as `run`.
        """
        with self._connection:
            return self._follow(part)

    def _start(self, request: JobRequest) -> None:
        # Where an answer was lost, the job that is there is taken for the one that was asked for.
        if self._ask("start_job", asdict(request)).text("state") == "other":
            raise NameTaken(f"job {self._label} is there already, with another command")

    def _follow(self, part: LogPart) -> JobResult | None:
        """Return how the job ended once the log was handed on, or None where the job runs."""
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
        """Return what the worker answers, over as many connections as `patience` allows.

        What it sends of the log before that is handed on, each time from where it is.
        """
        patience = self.deadline.within(self.patience)
        try:
            while True:
                connection = self._connection.connection  # it is tried for long enough in there
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
        return agent_client.answer(connection.label, done, "a worker could not keep a job")


@dataclass(eq=False)
class _Log:
    """Hands on a log, bytes and lines, and knows the offset behind them.

    It gets what a worker sends, in whatever pieces: parts, and other words around them.
    """

    _on_line: OnLine | None
    _on_log: OnLog | None
    _notice: OnLine
    offset: int | None = None
    _partial: bytes = b""

    def __post_init__(self) -> None:
        self._last = bytearray()

    def begin(self) -> None:
        """Make ready for another answer."""
        self._rest, self._left, self._epoch = b"", 0, 0

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(sanitize(bytes(self._last)).splitlines()[-_TAIL_LINES:])

    def feed(self, chunk: bytes) -> bool:
        """Take what came; return True if it has some of a part.

        Raises `TpukitError` if a worker sends much that is no part.
        """
        is_part = self._left > 0
        self._rest += chunk
        while self._rest:
            if not self._left:
                found = _PART.search(self._rest)
                if not found:  # a login script has written this, or a worker that is broken
                    self._rest = self._rest[-_LONGEST_HEAD:]
                    return is_part
                begins, self._left, self._epoch = map(int, found.groups())
                if self.offset is not None and begins > self.offset:
                    self._notice(f"{begins - self.offset} bytes of its log were dropped before")
                self._rest, self.offset = self._rest[found.end() :], begins
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
            self._on_log(data, self._epoch)
        self._hand_on_lines(data)

    def finish(self) -> None:
        """Count what has no line end yet as a line."""
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
            # Each part of a progress bar becomes a line of its own.
            for part in sanitize(line.rstrip(b"\r")).split("\n"):
                self._on_line(part)
