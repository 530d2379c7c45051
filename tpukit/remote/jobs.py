"""Detached jobs: a command that runs once on a worker, whatever becomes of the connection.

A job lives under `~/.tpukit/jobs/<job>/` on the worker: `command`, `log`, `pid` and, once it has
ended, `status`. The programs that keep these files are in `programs/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tpukit.clock import Clock, Deadline, polls
from tpukit.errors import BadInput, DeadlinePassed, NameTaken, TpukitError, TransportFailed
from tpukit.remote.job_log import JobLog, OnLine
from tpukit.remote.program import program_line
from tpukit.text import one_line, quote

if TYPE_CHECKING:
    from tpukit.remote.ssh import Connection
    from tpukit.remote.values import Completed

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
# A login script may write before us.
_ANSWER = re.compile(rb"^tpukit-job ([a-z]+) ?([0-9]*)\n", re.MULTILINE)
_CHUNK = 256 << 10
#: Pauses between two looks at a job, seconds: short after output, growing in silence.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
#: Seconds after which a job that never said who it is counts as lost.
_START_SECONDS = 15.0
#: What start_job.sh ends with when its input was cut short.
_INCOMPLETE = 75

_Answer = TypeVar("_Answer")


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


def run_job(
    connect: Callable[[], Connection],
    job: str,
    command: str,
    *,
    deadline: Deadline,
    clock: Clock,
    on_line: OnLine | None = None,
) -> JobResult:
    """Start a job unless it is there, follow its log to the end and return how it ended.

    `connect` opens a connection, and another one after a loss; each is closed here. `on_line` gets
    every line of the log once, sanitized, from the beginning also of a job that was there before.

    Raises:
        NameTaken: the job is there with another command.
        JobLost: it died without an exit status; it is not started again.
        DeadlinePassed: it goes on running; the same call finds it again.
        TransportFailed: `connect` gave up.
    """
    return _Follower(connect, job, deadline, clock, on_line).run(command)


def start_job(
    connect: Callable[[], Connection],
    job: str,
    command: str,
    *,
    deadline: Deadline,
    clock: Clock,
) -> bool:
    """Start a job and leave it; return False where it was there already with this very command.

    Raises `NameTaken` where it is there with another command.
    """
    return _Follower(connect, job, deadline, clock, None).start(command)


def follow_job(
    connect: Callable[[], Connection],
    job: str,
    *,
    deadline: Deadline,
    clock: Clock,
    on_line: OnLine | None = None,
    to_the_end: bool = True,
) -> JobResult | None:
    """Hand on a job's log from its first line to the job's end, and return how it ended.

    Without `to_the_end`: as far as the log goes now; None while the job runs. Raises as `run_job`
    does.
    """
    return _Follower(connect, job, deadline, clock, on_line).follow(to_the_end)


def forget_job(connection: Connection, job: str, *, deadline: Deadline) -> None:
    """Remove a finished or lost job's folder, so that its name can start again.

    Raises `NameTaken` while the job runs. A job that is not there is forgotten already; one that
    says "starting" when `run_job` has given it up as lost died before it had a process.
    """
    state = _look(connection, job, 0, 1, deadline).word
    if state == "running":
        raise NameTaken(f"job {job} is still running")
    if state != "absent":
        remove = f"rm -rf -- {quote([f'.tpukit/jobs/{job}'])}"
        if not connection.run(remove, deadline=deadline).ok:
            raise TpukitError(f"could not remove job {job}")


class _Follower:
    """Follows one job over as many connections as it takes."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        job: str,
        deadline: Deadline,
        clock: Clock,
        on_line: OnLine | None,
    ) -> None:
        if not _NAME.fullmatch(job):
            raise BadInput(
                f"{one_line(job)!r} cannot name a job", fix="use a-z, 0-9, '.', '_' and '-'"
            )
        self._connect = connect
        self._connection: Connection | None = None
        self._job = job
        self._deadline = deadline
        self._clock = clock
        self._log = JobLog(on_line)

    def run(self, command: str) -> JobResult:
        with self._connected():
            started = self._start(command)
            return self._result(self._follow(), started)

    def start(self, command: str) -> bool:
        with self._connected():
            return self._start(command)

    def follow(self, to_the_end: bool) -> JobResult | None:
        with self._connected():
            status = self._follow(to_the_end)
            return None if status is None else self._result(status, started=False)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except DeadlinePassed as error:
            raise DeadlinePassed(
                f"job {self._job} did not end in time",
                exists=(f"job {self._job} on the worker, log {self._log_path}",),
            ) from error
        finally:
            self._disconnect()

    def _result(self, status: int | None, started: bool) -> JobResult:
        assert status is not None
        return JobResult(status, self._log.tail, self._log_path, started)

    @property
    def _log_path(self) -> str:
        return f"~/.tpukit/jobs/{self._job}/log"

    def _start(self, command: str) -> bool:
        data = command.encode()
        line = program_line("start_job.sh", words=(self._job, str(len(data))))
        asked = 0

        def start(connection: Connection) -> str:
            nonlocal asked
            asked += 1
            return _answer(connection.run(line, stdin=data, deadline=self._deadline)).word

        word = self._insist(start)
        if word == "other":
            raise NameTaken(f"job {self._job} is there already, with another command")
        # Where an answer was lost, the job that is there is taken for the one that was asked for.
        return word == "started" or asked > 1

    def _follow(self, to_the_end: bool = True) -> int | None:
        pause = _FIRST_PAUSE
        patience = self._deadline.within(_START_SECONDS)
        while True:
            seen = self._insist(self._look)
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
            self._clock.sleep(min(pause, self._deadline.remaining()))

    def _look(self, connection: Connection) -> _Seen:
        return _look(connection, self._job, self._log.offset, _CHUNK, self._deadline)

    def _lost(self, word: str) -> JobLost:
        self._log.finish()
        gone = "its folder is not there: it was removed, or the worker was made anew"
        why = "its process is gone without an exit status: the worker restarted, or it was killed"
        return JobLost(
            f"job {self._job} was lost",
            why=gone if word == "absent" else why,
            details={"log_path": self._log_path, "tail": list(self._log.tail)},
        )

    def _insist(self, ask: Callable[[Connection], _Answer]) -> _Answer:
        """Return the answer to a question that may be repeated, over as many connections."""
        for _ in polls(self._deadline, first=0.2):
            if self._connection is None:
                self._connection = self._connect()
            try:
                return ask(self._connection)
            except TransportFailed as error:
                self._disconnect()
                last = error
        raise DeadlinePassed(last.what, reason=last.reason) from last

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True)
class _Seen:
    """One answer of the programs: how the job stands, its exit status, a piece of its log."""

    word: str
    status: str
    log: bytes


def _look(connection: Connection, job: str, offset: int, limit: int, deadline: Deadline) -> _Seen:
    line = program_line("state.sh", "read_job.sh", words=(job, str(offset), str(limit)))
    return _answer(connection.run(line, deadline=deadline))


def _answer(done: Completed) -> _Seen:
    if done.status == _INCOMPLETE:
        raise TransportFailed("the job's command did not arrive whole", why="nothing has run")
    found = _ANSWER.search(done.stdout)
    if not done.ok or found is None:
        reason = one_line(done.stderr[-400:]) or f"status {done.status}"
        raise TpukitError("a worker could not keep a job", reason=reason)
    return _Seen(found[1].decode(), found[2].decode(), done.stdout[found.end() :])
