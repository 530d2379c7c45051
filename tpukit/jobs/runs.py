"""Runs on workers: start and follow detached runs; list and end any run."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

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
from tpukit.jobs.attached import shield
from tpukit.jobs.detached_job import (
    LOG_LIMIT,
    WHOLE_LOG,
    DetachedJob,
    JobRequest,
    JobResult,
    LogPart,
)
from tpukit.jobs.end import (
    GRACE_SECONDS,
    EndReport,
    Holders,
    end_processes,
    follow_line,
    kill_line,
)
from tpukit.jobs.job_list import JobState, about, list_jobs
from tpukit.jobs.shell_environment import launch, shell_lines
from tpukit.ssh.client import Connection
from tpukit.ssh.fan_out import Outcome, fan_out, values
from tpukit.ssh.worker import RemoteWorker
from tpukit.ssh.worker_files import record_name

#: Seconds for a worker's answer to a short request.
_ASK_SECONDS = 30.0
#: Seconds that a withdrawn run gets to end.
_WITHDRAW_SECONDS = 2.0

#: Gets bytes of a worker's log.
OnLog = Callable[[RemoteWorker, bytes], None]
#: Gets a short message about a worker.
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
    per_chip: bool = False,
    log_limit: int = LOG_LIMIT,
    commit: str = "",
    service: Mapping[str, Any] | None = None,
) -> None:
    """Start a run on every worker or on none; with `per_chip`, a process for each chip.

    `commit` is that of the pushed tree, for listings. With `service`, the run is one.

    A distributed program hangs if one worker does not run it. So nothing starts before every worker
    has answered, and if a start fails or is interrupted, the others are ended. The first worker
    starts first: JAX and torch_xla look for their coordinator there.

    Raises:
        NameTaken: the run id is in use; nothing was started.
        TransportFailed: a worker could not be reached.
        Interrupted, Terminated: the user or a signal ended the command.

    Each error names the workers on which the run may still be running.
    """
    begun: set[RemoteWorker] = set()
    stopped = threading.Event()

    def job(worker: RemoteWorker) -> DetachedJob:
        limit = Deadline.after(clock, _ASK_SECONDS)
        return DetachedJob(worker.connect, record_name(run_id, worker.record), limit)

    def request(worker: RemoteWorker, lines: str) -> JobRequest:
        text = shell_lines(worker.variables) + lines
        # The request to start the job leaves the agent there, which then runs the command's parts.
        split = worker.accelerator if per_chip else None
        launched = launch(command, worker.words, sudo=sudo, per_chip=split, service=service)
        # A repeated start joins its own job; the nonce keeps it from joining another's.
        script = f"# {nonce}\n{launched}"
        return JobRequest(script, text, about(command, text, commit), log_limit)

    def begin(worker: RemoteWorker) -> None:
        begun.add(worker)
        starting = job(worker)
        try:
            if stopped.is_set():
                raise NameTaken(f"run {run_id} was withdrawn")
            starting.start(request(worker, environment))
        except TpukitError as error:
            # The run may exist only if the request was sent and its outcome is unknown.
            if not (starting.asked and isinstance(error, (TransportFailed, DeadlinePassed))):
                begun.discard(worker)
            error.fix = error.fix or worker.disk_fix(error.reason)
            raise

    def withdraw(worker: RemoteWorker) -> None:
        # If the job does not exist yet, this one takes its name: a late start is then refused.
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
        require_free(workers, run_id, clock)
        values(fan_out(workers[:1], begin))
        values(fan_out(workers[1:], begin))
    except (TpukitError, KeyboardInterrupt) as caught:
        had_begun = bool(begun)
        with suppress(KeyboardInterrupt):
            shield(withdraw_all, clock)
        error = interruption(caught) if isinstance(caught, KeyboardInterrupt) else caught
        left = sorted({worker.label for worker in begun})
        error.exists = tuple(f"run {run_id} may run on {label}" for label in left)
        if begun:
            error.fix, error.otherwise = kill_line(begun, run_id), follow_line(begun, run_id)
        elif isinstance(caught, KeyboardInterrupt):
            ended = f"run {run_id} was ended on every worker"
            error.why = ended if had_begun else "nothing was started"
        raise error from None


def require_free(workers: Sequence[RemoteWorker], run_id: str, clock: Clock) -> None:
    """Raise `NameTaken` if a worker has a run of that id, and `BadInput` if the id is invalid."""
    values(fan_out(workers, lambda worker: _refuse_again(worker, run_id, clock)))


def states(
    workers: Sequence[RemoteWorker],
    clock: Clock,
    run_id: str = "",
    *,
    ended_before: float | None = None,
    opened: Connections | None = None,
    patience: float = _ASK_SECONDS,
) -> States:
    """Return the runs on each worker, or with `run_id` only that one, with its environment.

    With `ended_before`, remove the files of runs that ended at least so many seconds ago. Close the
    connections, or leave them in `opened` if given. A worker has `patience` seconds to answer.
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


def latest(outcomes: States) -> str:
    """Return the id of the newest detached run. Attached runs have no log.

    Raises `NotFound` if there is none, and the workers' error if all of them failed.
    """
    runs = [run for outcome in outcomes for run in outcome.value or () if not run.attached]
    if not runs:
        if all(outcome.error for outcome in outcomes):
            values(outcomes)
        name = outcomes[0].item.slice
        start = Fix.command("tpukit", "run", name, "--detach", "--", "hostname", note="starts one")
        raise NotFound("there is no run", fix=start)
    return max(runs, key=lambda run: (run.started, run.run)).run


def holding(outcomes: States, run_id: str) -> list[RemoteWorker]:
    """Return the workers that have the run, and the workers that failed to answer.

    Raises `NotFound` if every worker answered and the run is on none.
    """
    having = [
        outcome.item
        for outcome in outcomes
        if outcome.error or any(run.run == run_id for run in outcome.value or ())
    ]
    if not having:
        raise _no_run(run_id, outcomes[0].item)
    return having


def require_log(outcomes: States, run_id: str) -> None:
    """Raise `NotFound` if the run is attached: only its client gets its output."""
    runs = (run for outcome in outcomes for run in outcome.value or ())
    if any(run.attached for run in runs if run.run == run_id):
        fix = Fix.command("tpukit", "kill", outcomes[0].item.slice, run_id, note="ends it")
        why = "it is attached: only its client gets its output"
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
    """Pass a part of the run's logs to `on_log`, each byte once; return each worker's result.

    A lost connection is reopened. `notice` gets a message about each loss, until an interrupt. A
    worker fails if it sends nothing for `patience` seconds, or if its `connect` gives up. The
    connections in `opened` are used first.
    """
    never, left = Deadline.never(clock), threading.Event()

    def one(worker: RemoteWorker) -> JobResult | None:
        first = (opened or {}).get(worker)
        once = iter([first] if first and first.alive else [])
        job = DetachedJob(
            lambda: next(once, None) or worker.connect(),
            record_name(run_id, worker.record),
            never,
            on_log=lambda data: on_log(worker, data),
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
    """End runs on each worker. `holders` decides if other processes on TPU devices end too.

    A worker fails if it sends nothing for `patience` seconds. If `run_ids` names runs, return only
    the outcomes of the workers that have them and of those that failed; raise `NotFound` if there
    are none.
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
    having = [
        outcome for outcome in ended if outcome.error or (outcome.value and outcome.value.runs)
    ]
    if not having:
        raise _no_run(run_ids[0], workers[0])
    return having


def _refuse_again(worker: RemoteWorker, run_id: str, clock: Clock) -> None:
    with worker.connect() as connection:
        limit = Deadline.after(clock, _ASK_SECONDS)
        existing = list_jobs(connection, worker.record, run_id, deadline=limit)
    if existing:
        raise NameTaken(
            f"run {run_id} is already on {worker.label}",
            reason=existing[0].state,
            fix=Fix(note="choose another --run-id, or leave it out"),
        )
