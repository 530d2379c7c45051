"""Runs on workers: detached ones started and followed, attached ones too listed and ended."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from tpukit.clock import Clock, Deadline
from tpukit.errors import (
    DeadlinePassed,
    Fix,
    NameTaken,
    NotFound,
    TpukitError,
    TransportFailed,
    interruption,
)
from tpukit.remote.command.attached import shield
from tpukit.remote.command.end import GRACE_SECONDS, EndReport, Holders, end_processes, kill_line
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
from tpukit.remote.job.job_list import JobState, about, list_jobs
from tpukit.remote.worker_files import record_name

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


def start(
    workers: Sequence[RemoteWorker],
    run_id: str,
    command: str,
    environment: str,
    clock: Clock,
    *,
    sudo: bool = False,
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
    begun: set[RemoteWorker] = set()
    stopped = threading.Event()

    def job(worker: RemoteWorker) -> DetachedJob:
        limit = Deadline.after(clock, _ASK_SECONDS)
        return DetachedJob(worker.connect, record_name(run_id, worker.record), limit)

    def request(worker: RemoteWorker, lines: str) -> JobRequest:
        text = shell_lines(worker.variables) + lines
        launched = launch(command, worker.words, sudo=sudo)
        # The same start asked for twice is one job, another one under this run id is refused.
        script = f"# {nonce}\n{launched}"
        return JobRequest(script, text, about(command, text), log_limit)

    def begin(worker: RemoteWorker) -> None:
        begun.add(worker)
        starting = job(worker)
        try:
            if stopped.is_set():
                raise NameTaken(f"run {run_id} was withdrawn")
            starting.start(request(worker, environment))
        except TpukitError as error:
            # It may run only if the worker was asked, and the answer is not known.
            if not (starting.asked and isinstance(error, (TransportFailed, DeadlinePassed))):
                begun.discard(worker)
            raise

    def withdraw(worker: RemoteWorker) -> None:
        # Where the job is not there, this one takes its place: a start may be on its way still.
        with suppress(NameTaken):
            job(worker).start(request(worker, "exit 143\n"))
        with worker.connect() as connection:
            job_names = [record_name(run_id, worker.record)]
            end_processes(connection, clock, jobs=job_names, grace=_WITHDRAW_SECONDS)
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
            error.fix = kill_line(begun, run_id)
        raise error from None


def states(
    workers: Sequence[RemoteWorker],
    clock: Clock,
    run_id: str = "",
    *,
    ended_before: float | None = None,
    opened: Connections | None = None,
    patience: float = _ASK_SECONDS,
) -> States:
    """Return the runs on each worker, or one, which has its environment then.

    The files of those that ended `ended_before` seconds ago are removed. The connections are closed
    again, or left in `opened`. A worker answers within `patience` seconds.
    """

    def ask(worker: RemoteWorker) -> list[JobState]:
        connection = worker.connect()
        try:
            limit = Deadline.after(clock, patience)
            return list_jobs(connection, worker.record, run_id, ended_before, deadline=limit)
        finally:
            if opened is None:
                connection.close()
            else:
                opened[worker] = connection

    return fan_out(workers, ask, window=len(workers))


def latest(found: States) -> str:
    """Return the detached run that was started last: an attached one has no log.

    Raises `NotFound` if there is none, and what every worker has failed with.
    """
    every = [state for each in found for state in each.value or () if not state.attached]
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
        if each.error or any(one.run == run_id for one in each.value or ())
    ]
    if not having:
        raise _no_run(run_id, found[0].item)
    return having


def require_log(found: States, run_id: str) -> None:
    """Raise `NotFound` if the run is attached: its output goes to its client alone."""
    if any(run.attached for each in found for run in each.value or () if run.run == run_id):
        fix = Fix.command("tpukit", "kill", found[0].item.slice, run_id, note="ends it")
        why = "it is attached: its output goes to its client alone"
        raise NotFound(f"run {run_id} has no log", why=why, fix=fix)


def _no_run(run_id: str, worker: RemoteWorker) -> NotFound:
    return NotFound(f"there is no run {run_id}", fix=Fix.command("tpukit", "jobs", worker.slice))


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

    `notice` is told of losses, until an interrupt. Lost connections are made anew. If so many
    seconds of `patience` brought nothing, or a worker's `connect` gives up, that is the worker's
    error. What is `opened` already comes first.
    """
    never, left = Deadline.never(clock), threading.Event()

    def one(worker: RemoteWorker) -> JobResult | None:
        first = (opened or {}).get(worker)
        once = iter([first] if first and first.alive else [])
        job = DetachedJob(
            lambda: next(once, None) or worker.connect(),
            record_name(run_id, worker.record),
            never,
            on_log=lambda data, epoch: on_log(worker, data, epoch),
            notice=lambda word: None if left.is_set() else notice(worker, word),
            patience=patience,
        )
        return job.follow(part)

    return fan_out(workers, one, window=len(workers), cancel=left.set)


def end(
    workers: Sequence[RemoteWorker],
    run_ids: Sequence[str] | Literal["all"],
    clock: Clock,
    *,
    holders: Holders = "told",
    first: str = "TERM",
    grace: float = GRACE_SECONDS,
    patience: float = _ASK_SECONDS,
) -> list[Outcome[RemoteWorker, EndReport]]:
    """End runs on each worker; whatever else holds a TPU device stays, unless it is to end too.

    A worker that says nothing for `patience` seconds has failed. Of one run, the outcomes are those
    of the workers that have it; raises `NotFound` if none has it and all could say.
    """

    def one(worker: RemoteWorker) -> EndReport:
        record = worker.record
        names = [record_name(run_id, record) for run_id in run_ids]
        with worker.connect() as connection:
            return end_processes(
                connection,
                clock,
                jobs=None if run_ids == "all" else names,
                worker=record,
                holders=holders,
                first=first,
                grace=grace,
                patience=patience,
            )

    ended = fan_out(workers, one, window=len(workers))
    if run_ids == "all" or not run_ids:
        return ended
    having = [each for each in ended if each.error or (each.value and each.value.runs)]
    if not having:
        raise _no_run(run_ids[0], workers[0])
    return having


def _refuse_again(worker: RemoteWorker, run_id: str, clock: Clock) -> None:
    with worker.connect() as connection:
        limit = Deadline.after(clock, _ASK_SECONDS)
        found = list_jobs(connection, worker.record, run_id, deadline=limit)
    if found:
        raise NameTaken(
            f"run {run_id} is on {worker.label} already",
            reason=found[0].state,
            fix=Fix(note="choose another --run-id, or leave it out"),
        )
