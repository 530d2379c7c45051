"""Detached jobs: a command that runs once on a worker, whatever becomes of the connection.

The program that keeps jobs on a worker lies beside this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tpukit.clock import Deadline
from tpukit.errors import BadInput, DeadlinePassed, Fix, NameTaken, TpukitError, TransportFailed
from tpukit.remote import worker_files
from tpukit.remote.connection.channel import OnOutput
from tpukit.remote.connection.worker import RetryingConnection
from tpukit.remote.programs import answer, python_request
from tpukit.text import one_line, sanitize

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

#: Bytes of its log that a job keeps, the newest ones.
LOG_LIMIT = 1 << 30
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_PART = re.compile(rb"tpukit-log (\d{1,18}) (\d{1,9}) (\d{1,12})\n")
_ANSWER = re.compile(rb"\A(?s:.*)\ntpukit-job (.*)\n")  # the last one: a log may hold others
#: Lines of the log that a result has, of so many bytes at most; a longer line is several.
_TAIL_LINES, _LONGEST_LINE = 50, 64 << 10
_NO_PROGRAM = 127

OnLine = Callable[[str], None]
#: Gets bytes of a log, and when they were written (seconds since the epoch) where that was asked.
OnLog = Callable[[bytes, int], None]


class JobLost(TpukitError):
    """A job's process is gone and left no exit status: the worker restarted, or it was killed."""


@dataclass(frozen=True)
class JobRequest:
    """What a job is to do.

    `command` is a program for sh, `environment` shell lines before it, which no file keeps. `about`
    is what listings show, a JSON object. `notify` is for sh, once, after the command has ended: it
    finds how in TPUKIT_STATUS.
    """

    command: str
    environment: str = ""
    about: str = ""
    notify: str = ""
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
    """How a job ended. `tail` are the last lines of its log, sanitized."""

    status: int
    tail: tuple[str, ...]
    log_path: str


@dataclass(eq=False)
class DetachedJob:
    """A job on a worker, and its log, over as many connections as it takes.

    `connect` opens a connection, and another one after a loss; each is closed here. `on_line` gets
    every line of the log once, sanitized, from the beginning also of a job that was there before;
    `on_log` its bytes. `notice` is told of losses. Where the worker was lost, and so many seconds
    of `patience` brought nothing, that is raised. Every method raises `DeadlinePassed` where the
    job goes on running, and `TransportFailed` where the worker is out of reach.
    """

    connect: Callable[[], Connection]
    name: str
    deadline: Deadline
    on_line: OnLine | None = None
    on_log: OnLog | None = None
    notice: OnLine = lambda line: None
    patience: float = 60.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadInput(
                f"{one_line(self.name)!r} cannot name a job",
                fix=Fix(note="use a-z, 0-9, '.', '_' and '-'"),
            )
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
        if self._answer("start", asdict(request)) == "other":
            raise NameTaken(f"job {self.name} is there already, with another command")

    def _follow(self, part: LogPart) -> JobResult | None:
        """Return how the job ended once the log was handed on, or None where the job runs."""
        word, _, status = self._answer("follow", asdict(part)).partition(" ")
        self._log.finish()
        if word == "finished" and status.isdecimal():
            return JobResult(int(status), self._log.tail, self._log_path)
        if word == "running":
            return None
        gone = "its folder is not there: it was removed, or the worker was made anew"
        dead = "its process is gone without an exit status: the worker restarted, or it was killed"
        raise JobLost(
            f"job {self.name} was lost",
            why=gone if word == "absent" else dead,
            details={"log_path": self._log_path, "log_tail": list(self._log.tail)},
        )

    def _answer(self, verb: str, words: dict[str, Any]) -> str:
        """Return what the worker answers, over as many connections as `patience` allows.

        What it sends of the log before that is handed on, each time from where it is.
        """
        patience = self.deadline.within(self.patience)
        try:
            while True:
                connection = self._connection.connection  # it is tried for long enough in there
                offset, begun = self._log.offset, self.deadline.clock.monotonic()
                known = {"job": self.name, "offset": offset, **words}
                self._log.begin()
                try:
                    return ask(connection, verb, known, self.deadline, self._log.feed)
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
                f"job {self.name} did not end in time",
                exists=(f"job {self.name} on the worker, log {self._log_path}",),
            ) from error


def ask(
    connection: Connection,
    verb: str,
    words: dict[str, Any],
    deadline: Deadline,
    on_output: OnOutput | None = None,
) -> str:
    """Return what the program that keeps jobs answers.

    Raises `TpukitError` where it fails, and what `Connection.run` raises.
    """
    request = {"verb": verb, "jobs": worker_files.JOBS, **words}
    line, stdin = python_request("remote/job/job_program.py", request)
    done = connection.run(line, stdin=stdin, on_output=on_output, deadline=deadline)
    missing = f"{connection.label} has no python3, which keeps its jobs"
    failure = missing if done.status == _NO_PROGRAM else "a worker could not keep a job"
    return answer(done, _ANSWER, failure)[1].decode("utf-8", "replace")


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

    def feed(self, stream: str, chunk: bytes) -> None:
        self._rest += chunk if stream == "stdout" else b""
        while self._rest:
            if not self._left:
                found = _PART.search(self._rest)
                if not found:
                    return
                begins, self._left, self._epoch = map(int, found.groups())
                if self.offset is not None and begins > self.offset:
                    self._notice(f"{begins - self.offset} bytes of its log were dropped before")
                self._rest, self.offset = self._rest[found.end() :], begins
            data, self._rest = self._rest[: self._left], self._rest[self._left :]
            self._left -= len(data)
            self._hand_on(data)

    def _hand_on(self, data: bytes) -> None:
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
