"""Detached jobs: a command that runs once on a worker, whatever becomes of the connection.

A job has a folder on the worker with `command`, `log`, `pid` and, once it has ended, `status`. The
programs that keep these files lie beside this one.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpukit.clock import Deadline
from tpukit.errors import BadInput, DeadlinePassed, Fix, NameTaken, TpukitError, TransportFailed
from tpukit.remote import worker_files
from tpukit.remote.connection.worker import RetryingConnection
from tpukit.remote.programs import answer, program_line
from tpukit.text import one_line, quote, sanitize

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection
    from tpukit.remote.connection.target import Completed

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_ANSWER = re.compile(rb"^tpukit-job ([a-z]+) ?([0-9]*)\n", re.MULTILINE)
_CHUNK = 256 << 10
#: Pauses between two looks at a job, seconds: short after output, growing in silence.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
#: Seconds after which a job that never said who it is counts as lost.
_START_SECONDS = 15.0
#: What start_job.sh ends with when its input was cut short.
_INCOMPLETE = 75

#: Lines of the log that a result has, and bytes after which a line without an end is one.
_TAIL_LINES, _LONGEST_LINE = 50, 64 << 10

OnLine = Callable[[str], None]


class JobLost(TpukitError):
    """A job's process is gone and left no exit status: the worker restarted, or it was killed."""


@dataclass(frozen=True)
class JobResult:
    """How a job ended. `tail` are the last lines of its log, sanitized.

    `started` is False when the job had been there before.
    """

    status: int
    tail: tuple[str, ...]
    log_path: str
    started: bool


class DetachedJob:
    """A job on a worker, and its log, over as many connections as it takes.

    `connect` opens a connection, and another one after a loss; each is closed here. `on_line` gets
    every line of the log once, sanitized, from the beginning also of a job that was there before.
    Every method raises `DeadlinePassed` where the job goes on running, and `TransportFailed` where
    `connect` gave up.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        name: str,
        deadline: Deadline,
        on_line: OnLine | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise BadInput(
                f"{one_line(name)!r} cannot name a job",
                fix=Fix(note="use a-z, 0-9, '.', '_' and '-'"),
            )
        self._connection = RetryingConnection(connect, deadline)
        self._name = name
        self._deadline = deadline
        self._log = _Log(on_line)

    def run(self, command: str) -> JobResult:
        """Start the job unless it is there, follow its log to the end and return how it ended.

        Raises:
            NameTaken: it is there with another command.
            JobLost: it died without an exit status; it is not started again.
        """
        with self._connected():
            started = self._start(command)
            return self._result(self._follow(), started)

    def start(self, command: str) -> bool:
        """Start the job and leave it; return False where it was there already.

        Raises `NameTaken` where it is there with another command.
        """
        with self._connected():
            return self._start(command)

    def follow(self, to_the_end: bool = True) -> JobResult | None:
        """Hand on the log from its first line to the job's end, and return how it ended.

        Without `to_the_end`: as far as the log goes now; None while the job runs. Raises as `run`.
        """
        with self._connected():
            status = self._follow(to_the_end)
            return None if status is None else self._result(status, started=False)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except DeadlinePassed as error:
            raise DeadlinePassed(
                f"job {self._name} did not end in time",
                exists=(f"job {self._name} on the worker, log {self._log_path}",),
            ) from error
        finally:
            self._connection.close()

    def _result(self, status: int | None, started: bool) -> JobResult:
        assert status is not None
        return JobResult(status, self._log.tail, self._log_path, started)

    @property
    def _log_path(self) -> str:
        return f"~/{worker_files.job_folder(self._name)}/log"

    def _start(self, command: str) -> bool:
        data = command.encode()
        line = program_line("remote/job/start_job.sh", words=(self._name, str(len(data))))
        asked = 0

        def start(connection: Connection) -> str:
            nonlocal asked
            asked += 1
            return _answered(connection.run(line, stdin=data, deadline=self._deadline)).word

        word = self._connection.retry_until(self._deadline, start)
        if word == "other":
            raise NameTaken(f"job {self._name} is there already, with another command")
        # Where an answer was lost, the job that is there is taken for the one that was asked for.
        return word == "started" or asked > 1

    def _follow(self, to_the_end: bool = True) -> int | None:
        pause = _FIRST_PAUSE
        patience = self._deadline.within(_START_SECONDS)
        while True:
            seen = self._connection.retry_until(self._deadline, self._look)
            self._log.feed(seen.log)
            if len(seen.log) == _CHUNK:
                continue
            if seen.word == "finished":
                self._log.finish()
                return int(seen.status)
            if seen.word in ("lost", "absent") or (seen.word == "starting" and patience.passed()):
                raise self._lost(seen.word)
            if not to_the_end:
                self._log.finish()
                return None
            self._deadline.check("the job still runs")
            pause = _FIRST_PAUSE if seen.log else min(pause * 1.5, _LONGEST_PAUSE)
            self._deadline.clock.sleep(min(pause, self._deadline.remaining()))

    def _look(self, connection: Connection) -> _Seen:
        return _look(connection, self._name, self._log.offset, _CHUNK, self._deadline)

    def _lost(self, word: str) -> JobLost:
        self._log.finish()
        gone = "its folder is not there: it was removed, or the worker was made anew"
        why = "its process is gone without an exit status: the worker restarted, or it was killed"
        return JobLost(
            f"job {self._name} was lost",
            why=gone if word == "absent" else why,
            details={"log_path": self._log_path, "log_tail": list(self._log.tail)},
        )


def forget_job(connection: Connection, job: str, *, deadline: Deadline) -> None:
    """Remove a finished or lost job's folder, so that its name can start again.

    A job that is not there is forgotten already; one that says "starting" when it has been
    given up as lost died before it had a process.

    Raises `NameTaken` for a job that runs, `TpukitError` where its folder cannot be removed.
    """
    state = _look(connection, job, 0, 1, deadline).word
    if state == "running":
        raise NameTaken(f"job {job} is still running")
    if state != "absent":
        remove = f"rm -rf -- {quote([worker_files.job_folder(job)])}"
        if not connection.run(remove, deadline=deadline).ok:
            raise TpukitError(f"could not remove job {job}")


class _Log:
    """Hands on each line once, sanitized; keeps the last ones and the offset behind them."""

    def __init__(self, on_line: OnLine | None) -> None:
        self.offset = 0
        self._on_line = on_line
        self._partial = b""
        self._last: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._last)

    def feed(self, data: bytes) -> None:
        self.offset += len(data)
        *whole, self._partial = (self._partial + data).split(b"\n")
        for line in whole:
            self._emit(line)
        if len(self._partial) > _LONGEST_LINE:
            self.finish()

    def finish(self) -> None:
        """Count what has no line end yet as a line."""
        if self._partial:
            self._emit(self._partial)
            self._partial = b""

    def _emit(self, line: bytes) -> None:
        # A progress bar is one line with many carriage returns: each becomes a line of its own.
        for part in sanitize(line.rstrip(b"\r")).split("\n"):
            self._last.append(part)
            if self._on_line is not None:
                self._on_line(part)


@dataclass(frozen=True)
class _Seen:
    """One answer of the programs: how the job stands, its exit status, a piece of its log."""

    word: str
    status: str
    log: bytes


def _look(connection: Connection, job: str, offset: int, limit: int, deadline: Deadline) -> _Seen:
    line = program_line(
        "remote/job/state.sh", "remote/job/read_job.sh", words=(job, str(offset), str(limit))
    )
    return _answered(connection.run(line, deadline=deadline))


def _answered(done: Completed) -> _Seen:
    if done.status == _INCOMPLETE:
        raise TransportFailed("the job's command did not arrive whole", why="nothing has run")
    found = answer(done, _ANSWER, "a worker could not keep a job")
    return _Seen(found[1].decode(), found[2].decode(), done.stdout[found.end() :])
