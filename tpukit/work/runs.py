"""Detached runs, each a job on every worker or on none: started, listed, followed, ended."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from tpukit.clock import Clock, Deadline
from tpukit.errors import Fix, NameTaken, NotFound, TpukitError, interruption
from tpukit.remote.command.attached import shield
from tpukit.remote.command.end import GRACE_SECONDS, EndReport, Holders, end_processes
from tpukit.remote.command.environment import launch, shell_lines
from tpukit.remote.command.fan_out import Outcome, fan_out, values
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.job.detached_job import (
    LOG_LIMIT,
    WHOLE_LOG,
    DetachedJob,
    JobRequest,
    JobResult,
    LogPart,
)
from tpukit.remote.job.job_list import JobState, Removal, about, list_jobs, remove_jobs
from tpukit.remote.worker_files import job_name

#: Seconds for one short question to a worker.
_ASK_SECONDS = 30.0
#: Seconds that a run which is to be on no worker after all gets to end.
_WITHDRAW_SECONDS = 2.0

#: Gets bytes of a worker's log, and when they were written where that was asked for.
OnLog = Callable[[RemoteWorker, bytes, int], None]
#: Gets a word about a worker.
Notice = Callable[[RemoteWorker, str], None]
Connections = dict[RemoteWorker, Connection]
States = list[Outcome[RemoteWorker, list[JobState]]]
Removals = list[Outcome[RemoteWorker, list[Removal]]]


def new_run_id(clock: Clock) -> str:
    """Return a run id that sorts by time: `20261121-143355-3f2a` (UTC)."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(clock.time()))}-{secrets.token_hex(2)}"


def start(
    workers: Sequence[RemoteWorker],
    run_id: str,
    command: str,
    environment: str,
    clock: Clock,
    *,
    sudo: bool = False,
    notify: str = "",
    log_limit: int = LOG_LIMIT,
) -> None:
    """Start a run on every worker, the first one before the others, or on none.

    A program over several workers hangs where one of them does not run it: nothing is started
    before every worker has answered, and what was started is ended where another start fails or is
    interrupted. The first worker is where JAX and torch_xla look for their coordinator.

    Raises:
        NameTaken: the run id is in use; nothing was started.
        TransportFailed: a worker could not be reached.
        Interrupted, Terminated: somebody did not want it after all.

    Each names the workers on which the run may go on all the same.
    """
    name = job_name(run_id)
    begun: set[RemoteWorker] = set()
    stopped = threading.Event()

    def job(worker: RemoteWorker) -> DetachedJob:
        return DetachedJob(worker.connect, name, Deadline.after(clock, _ASK_SECONDS))

    def request(worker: RemoteWorker, lines: str) -> JobRequest:
        text = shell_lines(worker.variables) + lines
        launched = launch(command, worker.words, sudo=sudo)
        told = ""
        if notify and worker is workers[0] and lines is environment:
            told = shell_lines({"TPUKIT_RUN": run_id, **worker.variables}) + notify
        # The same start asked for twice is one job, another one under this run id is refused.
        script = f"# {nonce}\n{launched}"
        return JobRequest(script, text, about(command, text), told, log_limit)

    def begin(worker: RemoteWorker) -> None:
        begun.add(worker)
        try:
            if stopped.is_set():
                raise NameTaken(f"run {run_id} was withdrawn")
            job(worker).start(request(worker, environment))
        except NameTaken:  # another's, or what has taken its place
            begun.discard(worker)
            raise

    def withdraw(worker: RemoteWorker) -> None:
        # Where the job is not there, this one takes its place: a start may be on its way still.
        with suppress(NameTaken):
            job(worker).start(request(worker, "exit 143\n"))
        with worker.connect() as connection:
            end_processes(connection, clock, jobs=[name], grace=_WITHDRAW_SECONDS)
        begun.discard(worker)

    def withdraw_all() -> None:
        stopped.set()
        with suppress(TpukitError):
            fan_out([*begun], withdraw, window=len(workers))

    nonce = secrets.token_hex(8)
    try:
        values(fan_out(workers, lambda each: _refuse_again(each, run_id, clock)))
        values(fan_out(workers[:1], begin))
        values(fan_out(workers[1:], begin))
    except (TpukitError, KeyboardInterrupt) as caught:
        with suppress(KeyboardInterrupt):
            shield(withdraw_all, clock)
        error = interruption(caught) if isinstance(caught, KeyboardInterrupt) else caught
        left = sorted({each.label for each in begun})
        error.exists = tuple(f"run {run_id} may run on {label}" for label in left)
        if begun:
            slices = ",".join(sorted({each.slice for each in begun}))
            error.fix = Fix.command("tpukit", "kill", slices, run_id, note="ends it there")
        raise error from None


def states(
    workers: Sequence[RemoteWorker],
    clock: Clock,
    run_id: str = "",
    opened: Connections | None = None,
) -> States:
    """Return the runs on each worker, or one, which has its environment then.

    The connections are closed again, or left in `opened`.
    """

    def ask(worker: RemoteWorker) -> list[JobState]:
        connection = worker.connect()
        try:
            return list_jobs(connection, run_id, deadline=Deadline.after(clock, _ASK_SECONDS))
        finally:
            if opened is None:
                connection.close()
            else:
                opened[worker] = connection

    return fan_out(workers, ask, window=len(workers))


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


def holding(found: States | Removals, run_id: str) -> list[RemoteWorker]:
    """Return the workers that have the run, and those that could not say.

    Raises `NotFound` where no worker has it and all could say.
    """
    having = [
        each.item
        for each in found
        if each.error or any(one.run == run_id for one in each.value or ())
    ]
    if not having:
        name = found[0].item.slice
        raise NotFound(f"there is no run {run_id}", fix=Fix.command("tpukit", "jobs", name))
    return having


def follow(
    workers: Sequence[RemoteWorker],
    run_id: str,
    on_log: OnLog,
    clock: Clock,
    *,
    part: LogPart = WHOLE_LOG,
    notice: Notice = lambda worker, word: None,
    patience: float = 60.0,
    opened: Connections | None = None,
) -> list[Outcome[RemoteWorker, JobResult | None]]:
    """Hand on a part of the run's logs, every byte once, and return how it ended on each worker.

    `notice` is told of losses. Lost connections are made anew; where so many seconds of `patience`
    brought nothing, or a worker's `connect` gives up, that is the worker's error. What is `opened`
    already comes first.
    """
    name, never = job_name(run_id), Deadline.never(clock)

    def one(worker: RemoteWorker) -> JobResult | None:
        first = (opened or {}).get(worker)
        once = iter([first] if first and first.alive else [])
        job = DetachedJob(
            lambda: next(once, None) or worker.connect(),
            name,
            never,
            on_log=lambda data, epoch: on_log(worker, data, epoch),
            notice=lambda word: notice(worker, word),
            patience=patience,
        )
        return job.follow(part)

    return fan_out(workers, one, window=len(workers))


def prune(
    workers: Sequence[RemoteWorker], run_id: str, older_than: float, clock: Clock
) -> Removals:
    """Remove what is left of runs, or of one, that ended `older_than` seconds ago, everywhere.

    A worker that has nothing of it has no removal.
    """

    def one(worker: RemoteWorker) -> list[Removal]:
        limit = Deadline.after(clock, _ASK_SECONDS)
        with worker.connect() as connection:
            return remove_jobs(connection, run_id, older_than, deadline=limit)

    return fan_out(workers, one, window=len(workers))


def end(
    workers: Sequence[RemoteWorker],
    run_ids: Sequence[str] | Literal["all"],
    clock: Clock,
    *,
    holders: Holders = "told",
    first: str = "TERM",
    grace: float = GRACE_SECONDS,
) -> list[Outcome[RemoteWorker, EndReport]]:
    """End runs on each worker; whatever else holds a TPU device stays, unless it is to end too."""
    jobs = "all" if run_ids == "all" else [job_name(each) for each in run_ids]

    def one(worker: RemoteWorker) -> EndReport:
        with worker.connect() as connection:
            return end_processes(
                connection, clock, jobs=jobs, holders=holders, first=first, grace=grace
            )

    return fan_out(workers, one, window=len(workers))


def _refuse_again(worker: RemoteWorker, run_id: str, clock: Clock) -> None:
    with worker.connect() as connection:
        found = list_jobs(connection, run_id, deadline=Deadline.after(clock, _ASK_SECONDS))
    if found:
        raise NameTaken(
            f"run {run_id} is on {worker.label} already",
            reason=found[0].state,
            fix=Fix(note="choose another --run-id, or leave it out"),
        )
