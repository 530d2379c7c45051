"""What a worker is made to do for a step: jobs that run once, and looks that do no harm twice."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from tpukit.clock import Deadline
from tpukit.errors import ProvisionFailed, TpukitError, TransportFailed
from tpukit.provision.known_failures import known_failure
from tpukit.remote.command.worker_lock import worker_lock
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.job.detached_job import (
    DetachedJob,
    JobLost,
    JobRequest,
    JobResult,
    LogPart,
)
from tpukit.remote.job.job_list import forget_job
from tpukit.remote.worker_files import PROVISION_LOCK
from tpukit.text import one_line, sanitize

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

#: Seconds that one look, or one upload, may take.
_BRIEFLY = 120.0
#: What whoever ends the client is told.
GOES_ON = "a step that was begun on a worker goes on there: the same command joins it"
#: Lines of a failed step's log that its report shows.
_TAIL = 15
#: Times that something harmless is tried over connections that break.
_TRIES = 3

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
    """Return what hands on events of many threads, never two at once."""
    lock = threading.Lock()

    def tell(event: ProvisionEvent) -> None:
        with lock:
            on_event(event)

    return tell


def attempt(step: str, shell: str, ended: Iterable[str]) -> str:
    """Return the id of the job for this attempt at a command; `ended` are those of earlier ones.

    The same command after the same number of ended attempts is the same job: a client that was
    killed and is typed again finds its job running; after an attempt that failed comes a new one.
    """
    digest = hashlib.sha256(shell.encode()).hexdigest()[:12]
    prefix = f"{_prefix(step)}{digest}-"
    return f"{prefix}{sum(job.startswith(prefix) for job in ended)}"


def is_attempt(job: str, step: str) -> bool:
    """Return whether this is the id of a job of the step."""
    return job.startswith(_prefix(step))


def _prefix(step: str) -> str:
    return f"provision-{step}-"


@contextmanager
def _failures() -> Iterator[None]:
    """Raise what an agent that fails says as `ProvisionFailed`, with the cause if it is known."""
    try:
        yield
    except TpukitError as caught:
        if type(caught) is not TpukitError:
            raise
        error = known_failure([caught.reason]) or ProvisionFailed(
            caught.what, why=caught.why, fix=caught.fix
        )
        error.reason = caught.reason
        raise error from caught


@dataclass(frozen=True)
class WorkerJobs:
    """One worker, and who is told of what its steps do."""

    worker: RemoteWorker
    deadline: Deadline
    on_event: OnEvent

    def tell(self, step: str, kind: Kind, text: str) -> None:
        """Hand on an event of a step."""
        self.on_event(ProvisionEvent(self.worker, step, kind, one_line(text)))

    def briefly(self, act: Callable[[Connection, Deadline], Value]) -> Value:
        """Do over a connection of its own what can be done again when the connection breaks.

        Raises `ProvisionFailed` if the agent fails.
        """
        for _ in range(_TRIES - 1):
            with _failures(), self.worker.connect() as connection, suppress(TransportFailed):
                return act(connection, self.deadline.within(_BRIEFLY))
            self.deadline.clock.sleep(1.0)
        with _failures(), self.worker.connect() as connection:
            return act(connection, self.deadline.within(_BRIEFLY))

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Run the block while no other client provisions the worker; yield whether one had to be
        waited for, which may have changed everything.

        Raises `DeadlinePassed` where another client does so until the deadline.
        """
        with worker_lock(
            self.worker,
            PROVISION_LOCK,
            self.deadline,
            ahead="another client provisions it",
            late=f"another client was provisioning {self.worker.label} until the deadline",
            on_wait=lambda line: self.tell("wait", "started", line),
        ) as waited:
            yield waited

    def run(self, step: str, job: str, shell: str, reason: str) -> JobResult:
        """Run a step's command as the job of this id, and return how it ended.

        One that runs already is joined, one that was lost is replaced.

        Raises:
            ProvisionFailed: it ended with another status than 0, and the end of its log is in the
                details; or it could not begin.
            DeadlinePassed, TransportFailed: as `DetachedJob` raises.
        """
        with _failures():
            result = self._follow(step, job, shell)
        if result.status == 0:
            return result
        tail = [sanitize(line) for line in result.tail[-_TAIL:]]
        unknown = ProvisionFailed(f"a command ended with status {result.status}", reason=reason)
        error = known_failure(tail) or unknown
        error.details = {"log_tail": tail, "log_path": result.log_path}
        raise error

    def outwait(self, job: str) -> None:
        """Return once a job has ended that a client has left, whatever came of it.

        Raises `DeadlinePassed` where it runs on, `TransportFailed` as `DetachedJob` does.
        """
        left = DetachedJob(self.worker.connect, job, self.deadline)
        try:
            if left.follow(LogPart(tail=0, on=False)) is None:
                self.tell("wait", "started", f"{job} still runs; the client that began it is gone")
                left.follow()
        except JobLost:
            self.forget(job)

    def forget(self, job: str) -> None:
        """Remove the folder of a job that has ended."""
        self.briefly(lambda connection, limit: forget_job(connection, job, deadline=limit))

    def _follow(self, step: str, job: str, shell: str) -> JobResult:
        def run() -> JobResult:
            started = DetachedJob(
                self.worker.connect, job, self.deadline, lambda line: self.tell(step, "line", line)
            )
            return started.run(JobRequest(shell))

        try:
            return run()
        except JobLost:
            self.forget(job)
            return run()
