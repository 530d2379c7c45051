"""Undoes provisioning on workers: removes environments, then reverses the steps in the ledgers.

Only one client at a time changes a worker. Jobs of a client that is gone must end first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tpukit.clock import Deadline
from tpukit.errors import Fix, TpukitError
from tpukit.provision import system_steps
from tpukit.provision.provision_report import WorkerUndoReport, failure
from tpukit.provision.system_apply import run_job
from tpukit.provision.system_facts import Ledger, SystemFacts, read_system_facts
from tpukit.provision.worker_jobs import OnEvent, WorkerJobs, one_at_a_time
from tpukit.ssh import agent_client
from tpukit.ssh.fan_out import fan_out, values
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.ssh.client import Connection


def undo_all(
    workers: Sequence[RemoteWorker],
    words: Sequence[str],
    *,
    deadline: Deadline,
    on_event: OnEvent = lambda event: None,
) -> list[WorkerUndoReport]:
    """Undo the named steps and recipes on each worker; without words, undo everything.

    If a worker fails, the others go on, and its report has the error; nothing is raised. Only one
    thread at a time calls `on_event`.
    """
    tell = one_at_a_time(on_event)

    def undo(worker: RemoteWorker) -> WorkerUndoReport:
        return _Undoing(WorkerJobs(worker, deadline, tell), words).report()

    return values(fan_out(workers, undo, window=len(workers)))


def require_undone(reports: Sequence[WorkerUndoReport]) -> Sequence[WorkerUndoReport]:
    """Return the reports, or raise one error for the workers that failed.

    Raises:
        ProvisionFailed: a step or an environment could not be undone on a worker.
        TpukitError: a worker could not be reached; the error has the class of the cause.
    """
    if all(report.ok for report in reports):
        return reports
    details = {"workers": [report.document() for report in reports]}
    _, error = failure("undo failed", reports, details)
    again = Fix(note="fix the cause and run the same command again: it undoes the rest")
    error.fix = error.fix or again
    raise error


class _Undoing:
    """Undoes provisioning on one worker, and collects the words of undone steps."""

    def __init__(self, jobs: WorkerJobs, words: Sequence[str]) -> None:
        self._jobs = jobs
        self._all = not words
        self._steps = [word for word in words if system_steps.is_step(word)]
        self._environments = [word.partition("==")[0] for word in words if word not in self._steps]
        self._undone: list[str] = []

    def report(self) -> WorkerUndoReport:
        """Undo the latest change first; stop at the first failure."""
        try:
            with self._jobs.alone():
                self._undo()
        except TpukitError as error:
            tail = tuple(error.details.get("log_tail", ()))
            return self._reported(one_line(error.summary()), error, tail)
        return self._reported()

    def _reported(
        self, error: str = "", cause: TpukitError | None = None, tail: tuple[str, ...] = ()
    ) -> WorkerUndoReport:
        worker, undone = self._jobs.worker, tuple(self._undone)
        return WorkerUndoReport(worker.index, undone, error, cause, tail, worker.slice)

    def _undo(self) -> None:
        facts = self._settled_facts()
        if self._all or self._environments:
            self._jobs.briefly(self._remove_environments)
        ledgers = sorted(facts.ledgers.values(), key=lambda ledger: ledger.number, reverse=True)
        for ledger in ledgers:
            if self._all or ledger.step in self._steps:
                self._undo_step(ledger, facts)
        if self._all or self._steps:
            self._jobs.briefly(self._sweep)

    def _settled_facts(self) -> SystemFacts:
        """Wait until no job of provisioning runs, whichever client started it; return the facts."""
        facts = self._jobs.briefly(partial(read_system_facts, ()))
        for job in facts.open_jobs:
            self._jobs.outwait(job)
        return self._jobs.briefly(partial(read_system_facts, ())) if facts.open_jobs else facts

    def _remove_environments(self, connection: Connection, deadline: Deadline) -> None:
        """Remove the named environments, or all; with the last one, also uv and its Pythons."""
        request = {"names": None if self._all else self._environments}
        failure = "the environments cannot be removed"
        answer = agent_client.ask(
            connection, "remove_environments", request, failure, deadline=deadline
        )
        self._undone += answer.texts("removed")

    def _undo_step(self, ledger: Ledger, facts: SystemFacts) -> None:
        self._jobs.tell(ledger.step, "started", "undo")
        request = system_steps.request(ledger.step)
        command = agent_client.job_command("undo_step", request, "python3")
        try:
            run_job(self._jobs, ledger.step, command, facts.ended_jobs, "undo")
        except TpukitError as error:
            error.what = f"step {ledger.step}: {error.what}"
            raise
        self._jobs.tell(ledger.step, "finished", "changed: undone")
        self._undone.append(ledger.step)

    def _sweep(self, connection: Connection, deadline: Deadline) -> None:
        failure = "the remains of undone steps cannot be removed"
        agent_client.ask(connection, "sweep_steps", {}, failure, deadline=deadline)
