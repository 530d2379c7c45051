"""Runs that go on without us: started on every worker or on none, listed, followed, ended."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from tpukit.clock import Clock, Deadline
from tpukit.errors import NameTaken, NotFound, TpukitError
from tpukit.remote.ending import EndReport, end_processes
from tpukit.remote.fanout import Outcome, fan_out
from tpukit.remote.job_list import JobState, job_name, job_script, list_jobs
from tpukit.remote.jobs import JobResult, follow_job, start_job
from tpukit.remote.ssh import Connection
from tpukit.remote.worker import RemoteWorker

#: Seconds for one short question to a worker.
_ASK_SECONDS = 30.0
_GRACE_SECONDS = 10.0

OnLine = Callable[[RemoteWorker, str], None]
States = list[Outcome[RemoteWorker, list[JobState]]]


def new_run_id(clock: Clock) -> str:
    """Return a run id that sorts by time: `20261121-143355-3f2a` (UTC)."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(clock.time()))}-{secrets.token_hex(2)}"


def start(
    workers: Sequence[RemoteWorker], run_id: str, command: str, environment: str, clock: Clock
) -> None:
    """Start a run on every worker, the first one before the others, or on none.

    A program over several workers hangs where one of them does not run it: nothing is started
    before every worker has answered, and what was started is ended where another start fails. The
    first worker is where JAX and torch_xla look for their coordinator.

    Raises:
        NameTaken: the run id is in use; nothing was started.
        TransportFailed: a worker could not be reached; nothing was left running.
    """
    name = job_name(run_id)
    script = job_script(command, environment, nonce=secrets.token_hex(8), started=clock.time())
    held = [_Held(worker) for worker in workers]

    def begin(each: _Held) -> None:
        limit = Deadline.after(clock, _ASK_SECONDS)
        start_job(each.connect, name, script, deadline=limit, clock=clock)

    try:
        _raise_first(fan_out(held, lambda each: _refuse_again(each.open(), run_id, clock)))
        _raise_first(fan_out(held[:1], begin))
        outcomes = fan_out(held[1:], begin)
        if any(each.error for each in outcomes):
            _withdraw(held, name, clock)
            _raise_first(outcomes)
    finally:
        for each in held:
            each.close()


def states(workers: Sequence[RemoteWorker], clock: Clock) -> States:
    """Return the runs on each worker."""

    def ask(worker: RemoteWorker) -> list[JobState]:
        with worker.connect() as connection:
            return list_jobs(connection, deadline=Deadline.after(clock, _ASK_SECONDS))

    return fan_out(workers, ask, window=max(len(workers), 1))


def latest(found: States) -> str:
    """Return the run that was started last; raise `NotFound` where there is none."""
    every = [state for each in found for state in each.value or ()]
    if not every:
        raise NotFound("there is no run", fix="tpukit run NAME --detach -- COMMAND")
    return max(every, key=lambda state: (state.started, state.run_id)).run_id


def holding(found: States, run_id: str) -> list[RemoteWorker]:
    """Return the workers that have the run, and those that could not say.

    Raises `NotFound` where no worker has it and all could say.
    """
    having = [
        each.item
        for each in found
        if each.error or any(state.run_id == run_id for state in each.value or ())
    ]
    if not having:
        raise NotFound(f"there is no run {run_id}")
    return having


def follow(
    workers: Sequence[RemoteWorker],
    run_id: str,
    on_line: OnLine,
    clock: Clock,
    *,
    to_the_end: bool = True,
) -> list[Outcome[RemoteWorker, JobResult | None]]:
    """Hand on every line of the run's logs once, and return how it ended on each worker.

    Lost connections are made anew, for as long as a worker's `connect` keeps trying.
    """
    name, never = job_name(run_id), Deadline.never(clock)

    def one(worker: RemoteWorker) -> JobResult | None:
        return follow_job(
            worker.connect,
            name,
            deadline=never,
            clock=clock,
            on_line=lambda line: on_line(worker, line),
            to_the_end=to_the_end,
        )

    return fan_out(workers, one, window=max(len(workers), 1))


def end(
    workers: Sequence[RemoteWorker], run_id: str | None, clock: Clock
) -> list[Outcome[RemoteWorker, EndReport]]:
    """End a run, or every run, and whatever else holds a TPU device, on each worker.

    A holder that belongs to another run is spared unless every run is to end.
    """

    def one(worker: RemoteWorker) -> EndReport:
        with worker.connect() as connection:
            report = end_processes(
                connection,
                jobs=[job_name(run_id)] if run_id else "all",
                holders="orphans" if run_id else "all",
                grace=_GRACE_SECONDS,
                deadline=Deadline.after(clock, 2 * _GRACE_SECONDS + _ASK_SECONDS),
            )
        if report.left:
            pids = ", ".join(map(str, report.left))
            raise TpukitError(f"processes on {worker.label} cannot be ended", reason=pids)
        return report

    return fan_out(workers, one, window=max(len(workers), 1))


class _Held:
    """A worker with its first connection held open, for several short questions."""

    def __init__(self, worker: RemoteWorker) -> None:
        self._worker = worker
        self._held: Connection | None = None
        self._lock = threading.Lock()

    def open(self) -> Connection:
        connection = self._worker.connect()
        with self._lock:
            self._held = connection
        return connection

    def connect(self) -> Connection:
        """Return the connection that is held, for the caller to close, or a new one."""
        with self._lock:
            held, self._held = self._held, None
        return held if held and held.alive else self._worker.connect()

    def close(self) -> None:
        with self._lock:
            held, self._held = self._held, None
        if held:
            held.close()


def _refuse_again(connection: Connection, run_id: str, clock: Clock) -> None:
    for state in list_jobs(connection, deadline=Deadline.after(clock, _ASK_SECONDS)):
        if state.run_id == run_id:
            raise NameTaken(
                f"run {run_id} is on {connection.label} already",
                reason=state.state,
                fix="choose another --run-id, or leave it out",
            )


def _withdraw(held: Sequence[_Held], name: str, clock: Clock) -> None:
    """End what a start that failed half-way has started; who cannot be reached did not start."""

    def one(each: _Held) -> None:
        with each.connect() as connection:
            limit = Deadline.after(clock, _ASK_SECONDS)
            end_processes(connection, jobs=[name], grace=2.0, deadline=limit)

    fan_out(held, one)


def _raise_first(outcomes: Iterable[Outcome[_Held, None]]) -> None:
    for each in outcomes:
        if each.error:
            raise each.error
