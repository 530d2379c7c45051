"""The work of steps on one worker: jobs that run once, short actions that may be repeated, reports.

A step has an event when it starts and ends, and a report at its end.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from tpukit.clock import Deadline
from tpukit.errors import ProvisionFailed, TpukitError
from tpukit.explain.known_errors import first_known
from tpukit.jobs.detached_job import (
    DetachedJob,
    JobLost,
    JobRequest,
    JobResult,
    LogPart,
)
from tpukit.jobs.job_list import forget_job
from tpukit.provision.provision_report import StepReport, WorkerProvisionReport
from tpukit.ssh.worker import RemoteWorker, RetryingConnection
from tpukit.ssh.worker_files import PROVISION_LOCK
from tpukit.ssh.worker_lock import worker_lock
from tpukit.text import one_line, sanitize

if TYPE_CHECKING:
    from tpukit.ssh.client import Connection

#: Seconds for one short action, such as reading facts or an upload.
_BRIEFLY = 120.0
#: The message when the user interrupts provisioning.
GOES_ON = "a step that started on a worker continues there: the same command joins it"
#: The number of log lines that a failed step's report shows.
_TAIL = 15

Value = TypeVar("Value")
Kind = Literal["started", "line", "finished"]


@dataclass(frozen=True)
class ProvisionEvent:
    """A worker's step started, wrote a line, or finished."""

    worker: RemoteWorker
    step: str
    kind: Kind
    text: str


OnEvent = Callable[[ProvisionEvent], None]


def one_at_a_time(on_event: OnEvent) -> OnEvent:
    """Return a function that passes on events from many threads, one at a time."""
    lock = threading.Lock()

    def tell(event: ProvisionEvent) -> None:
        with lock:
            on_event(event)

    return tell


def attempt(step: str, shell: str, ended: Iterable[str]) -> str:
    """Return the job id of the current attempt at a command; `ended` has the ids of ended jobs.

    The id has the number of ended attempts. So a command that is killed and run again finds its
    running job, and after a failed attempt it gets a new id.
    """
    digest = hashlib.sha256(shell.encode()).hexdigest()[:12]
    prefix = f"{_prefix(step)}{digest}-"
    return f"{prefix}{sum(job.startswith(prefix) for job in ended)}"


def is_attempt(job: str, step: str) -> bool:
    """Return True if this is the id of a job of the step."""
    return job.startswith(_prefix(step))


def _prefix(step: str) -> str:
    return f"provision-{step}-"


@contextmanager
def _failures() -> Iterator[None]:
    """Raise a plain `TpukitError` of the agent as `ProvisionFailed`, with its known cause."""
    try:
        yield
    except TpukitError as caught:
        if type(caught) is not TpukitError:
            raise
        error = _known_failure([caught.reason]) or ProvisionFailed(
            caught.what, why=caught.why, fix=caught.fix
        )
        error.reason = caught.reason
        raise error from caught


def _known_failure(lines: Iterable[str]) -> ProvisionFailed | None:
    """Return the error for the last lines of a log, or None if their cause is not known."""
    known = first_known("\n".join(lines), "install")
    return ProvisionFailed(known.phrase, fix=known.fix) if known else None


@dataclass(frozen=True)
class WorkerJobs:
    """One worker, the function that gets the events of its steps, and the steps taken so far."""

    worker: RemoteWorker
    deadline: Deadline
    on_event: OnEvent
    taken: list[StepReport] = field(default_factory=list, init=False)

    def tell(self, step: str, kind: Kind, text: str) -> None:
        """Report an event of a step."""
        self.on_event(ProvisionEvent(self.worker, step, kind, one_line(text)))

    def take(self, step: str, act: Callable[[], tuple[str, str]]) -> None:
        """Take a step: call `act`, which returns an outcome and a detail, and report them.

        If `act` raises a `TpukitError`, report the step as `failed` and raise the error again.
        """
        started = self.deadline.clock.monotonic()

        def end(outcome: str, detail: str) -> None:
            seconds = self.deadline.clock.monotonic() - started
            self.taken.append(StepReport(step, outcome, detail, seconds))
            self.tell(step, "finished", f"{outcome}: {detail}")

        try:
            outcome, detail = act()
        except TpukitError as error:
            end("failed", one_line(error.summary()))
            raise
        end(outcome, detail)

    def report(
        self, error: TpukitError | None, *, python: str = "", emulated: bool = False
    ) -> WorkerProvisionReport:
        """Return the worker's report; `error` is the error that ended the work early, if any."""
        details = error.details if error else {}
        failed = [f"step {step.name}: " for step in self.taken if step.outcome == "failed"]
        return WorkerProvisionReport(
            worker=self.worker.index,
            slice=self.worker.slice,
            steps=tuple(self.taken),
            python=python,
            emulated=emulated,
            error="".join([*failed, one_line(error.summary())]) if error else "",
            cause=error,
            log_tail=tuple(details.get("log_tail", ())),
            log_path=one_line(details.get("log_path", "")),
        )

    def briefly(self, act: Callable[[Connection, Deadline], Value]) -> Value:
        """Call `act` over a new connection, and again if the connection breaks.

        Raises `ProvisionFailed` if the agent fails, and the errors of `RetryingConnection.retry`.
        """
        with _failures(), RetryingConnection(self.worker.connect, self.deadline) as link:
            return link.retry(lambda connection: act(connection, self.deadline.within(_BRIEFLY)))

    def alone(self) -> AbstractContextManager[bool]:
        """Run the block while no other client provisions the worker.

        Yields True if it had to wait for another client, which may have changed the facts. Raises
        `DeadlinePassed` if the other client takes until the deadline.
        """
        return worker_lock(
            self.worker,
            PROVISION_LOCK,
            self.deadline,
            ahead="another client provisions it",
            late=f"another client was provisioning {self.worker.label} until the deadline",
            on_wait=lambda line: self.tell("wait", "started", line),
        )

    def run(self, step: str, job: str, shell: str, reason: str) -> JobResult:
        """Run a step's command as the job of this id, and return its result.

        A job that already runs is joined; a lost one is replaced.

        Raises:
            ProvisionFailed: the job ended with another status than 0 (the details have the end of
                its log), or could not start.
            DeadlinePassed, TransportFailed: see `DetachedJob`.
        """
        request, connect = JobRequest(shell), self.worker.connect
        on_line = partial(self.tell, step, "line")
        with _failures():
            try:
                result = DetachedJob(connect, job, self.deadline, on_line).run(request)
            except JobLost:
                self.forget(job)
                result = DetachedJob(connect, job, self.deadline, on_line).run(request)
        if result.status == 0:
            return result
        tail = [sanitize(line) for line in result.tail[-_TAIL:]]
        unknown = ProvisionFailed(f"a command ended with status {result.status}", reason=reason)
        error = _known_failure(tail) or unknown
        error.details = {"log_tail": tail, "log_path": result.log_path}
        raise error

    def outwait(self, job: str) -> None:
        """Wait for the end of a job that another client has left; ignore its result.

        Raises `DeadlinePassed` if the job still runs then; for `TransportFailed` see `DetachedJob`.
        """
        left = DetachedJob(self.worker.connect, job, self.deadline)
        try:
            if left.follow(LogPart(tail=0, on=False)) is None:
                self.tell("wait", "started", f"{job} still runs; its client is gone")
                left.follow()
        except JobLost:
            self.forget(job)

    def forget(self, job: str) -> None:
        """Remove the folder of a job that has ended."""
        self.briefly(lambda connection, limit: forget_job(connection, job, deadline=limit))
