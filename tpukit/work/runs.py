"""Detached runs, each a job on every worker or on none: started, listed, followed, ended."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Literal

from tpukit.clock import Clock, Deadline
from tpukit.errors import Fix, NameTaken, NotFound, TpukitError
from tpukit.remote.command.end import EndReport, Holders, end_processes
from tpukit.remote.command.fan_out import Outcome, fan_out, values
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.worker import RemoteWorker, RetryingConnection
from tpukit.remote.job.detached_job import DetachedJob, JobResult
from tpukit.remote.job.job_list import JobState, job_name, job_script, list_jobs

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
    never = Deadline.never(clock)
    sessions = [RetryingConnection(worker.connect, never) for worker in workers]

    def begin(each: RetryingConnection) -> None:
        limit = Deadline.after(clock, _ASK_SECONDS)
        DetachedJob(lambda: each.connection, name, limit).start(script)

    try:
        values(fan_out(sessions, lambda each: _refuse_again(each.connection, run_id, clock)))
        values(fan_out(sessions[:1], begin))
        outcomes = fan_out(sessions[1:], begin)
        if any(each.error for each in outcomes):
            _withdraw(sessions, name, clock)
            values(outcomes)
    finally:
        for each in sessions:
            each.close()


def states(workers: Sequence[RemoteWorker], clock: Clock) -> States:
    """Return the runs on each worker."""

    def ask(worker: RemoteWorker) -> list[JobState]:
        with worker.connect() as connection:
            return list_jobs(connection, deadline=Deadline.after(clock, _ASK_SECONDS))

    return fan_out(workers, ask, window=max(len(workers), 1))


def latest(found: States) -> str:
    """Return the run that was started last.

    Raises `NotFound` where there is none, and what every worker has failed with.
    """
    every = [state for each in found for state in each.value or ()]
    if not every:
        if all(each.error for each in found):
            values(found)
        name = found[0].item.slice
        start = Fix.command("tpukit", "run", name, "--detach", "--", "hostname", note="starts one")
        raise NotFound("there is no run", fix=start)
    return max(every, key=lambda state: (state.started, state.run)).run


def holding(found: States, run_id: str) -> list[RemoteWorker]:
    """Return the workers that have the run, and those that could not say.

    Raises `NotFound` where no worker has it and all could say.
    """
    having = [
        each.item
        for each in found
        if each.error or any(state.run == run_id for state in each.value or ())
    ]
    if not having:
        name = found[0].item.slice
        raise NotFound(f"there is no run {run_id}", fix=Fix.command("tpukit", "jobs", name))
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
        job = DetachedJob(worker.connect, name, never, lambda line: on_line(worker, line))
        return job.follow(to_the_end)

    return fan_out(workers, one, window=max(len(workers), 1))


def end(
    workers: Sequence[RemoteWorker], run_id: str | None, clock: Clock
) -> list[Outcome[RemoteWorker, EndReport]]:
    """End a run, or every run, and whatever else holds a TPU device, on each worker.

    A holder that belongs to another run is spared unless every run is to end.
    """

    def one(worker: RemoteWorker) -> EndReport:
        with worker.connect() as connection:
            jobs = [job_name(run_id)] if run_id else "all"
            return end_jobs(connection, jobs, "orphans" if run_id else "all", clock)

    return fan_out(workers, one, window=max(len(workers), 1))


def end_jobs(
    connection: Connection, jobs: Sequence[str] | Literal["all"], holders: Holders, clock: Clock
) -> EndReport:
    """End jobs and holders of devices on a worker; raise `TpukitError` where a process resists."""
    limit = Deadline.after(clock, 2 * _GRACE_SECONDS + _ASK_SECONDS)
    report = end_processes(
        connection, jobs=jobs, holders=holders, grace=_GRACE_SECONDS, deadline=limit
    )
    if report.left:
        pids = ", ".join(map(str, report.left))
        raise TpukitError(f"processes on {connection.label} cannot be ended", reason=pids)
    return report


def _refuse_again(connection: Connection, run_id: str, clock: Clock) -> None:
    for state in list_jobs(connection, deadline=Deadline.after(clock, _ASK_SECONDS)):
        if state.run == run_id:
            raise NameTaken(
                f"run {run_id} is on {connection.label} already",
                reason=state.state,
                fix=Fix(note="choose another --run-id, or leave it out"),
            )


def _withdraw(sessions: Sequence[RetryingConnection], name: str, clock: Clock) -> None:
    """End what a start that failed half-way has started; who cannot be reached did not start."""

    def one(each: RetryingConnection) -> None:
        limit = Deadline.after(clock, _ASK_SECONDS)
        end_processes(each.connection, jobs=[name], grace=2.0, deadline=limit)

    fan_out(sessions, one)
