"""What provisioning has brought to workers is taken back: environments, then the steps of ledgers.

One client at a time changes a worker, and what a client that is gone has left running ends first.
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
from tpukit.remote import agent_client
from tpukit.remote.command.fan_out import fan_out, values
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection


def undo_all(
    workers: Sequence[RemoteWorker],
    words: Sequence[str],
    *,
    deadline: Deadline,
    on_event: OnEvent = lambda event: None,
) -> list[WorkerUndoReport]:
    """Take back what these words have brought to each worker; without words, everything.

    `on_event` is called from one thread at a time. A worker that fails never stops the others, and
    is never raised: its report has the error.
    """
    tell = one_at_a_time(on_event)

    def undo(worker: RemoteWorker) -> WorkerUndoReport:
        return _Undoing(WorkerJobs(worker, deadline, tell), words).report()

    return values(fan_out(workers, undo, window=len(workers)))


def require_undone(reports: Sequence[WorkerUndoReport]) -> Sequence[WorkerUndoReport]:
    """Return the reports.

    Raises:
        ProvisionFailed: something could not be taken back on a worker.
        TpukitError: a worker could not be reached: the class of the error that says why.
    """
    if all(report.ok for report in reports):
        return reports
    details = {"workers": [each.document() for each in reports]}
    _, error = failure("undo failed", reports, details)
    again = Fix(note="mend the cause and type the same command again: what is undone stays so")
    error.fix = error.fix or again
    raise error


class _Undoing:
    """The undoing of one worker; grows `undone`."""

    def __init__(self, jobs: WorkerJobs, words: Sequence[str]) -> None:
        self._jobs = jobs
        self._all = not words
        self._steps = [word for word in words if system_steps.is_step(word)]
        self._environments = [word.partition("==")[0] for word in words if word not in self._steps]
        self._undone: list[str] = []

    def report(self) -> WorkerUndoReport:
        """Take back the last change first, until one fails."""
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
        ledgers = sorted(facts.ledgers.values(), key=lambda each: each.number, reverse=True)
        chosen = [each for each in ledgers if self._all or each.step in self._steps]
        for ledger in chosen:
            self._undo_step(ledger, facts)
        if self._all or self._steps:
            self._jobs.briefly(self._sweep)

    def _settled_facts(self) -> SystemFacts:
        """Return the facts once no job of provisioning runs any more, whoever has begun it."""
        facts = self._jobs.briefly(partial(read_system_facts, ()))
        for job in facts.open_jobs:
            self._jobs.outwait(job)
        return self._jobs.briefly(partial(read_system_facts, ())) if facts.open_jobs else facts

    def _remove_environments(self, connection: Connection, deadline: Deadline) -> None:
        """Remove those that are named, or all; with the last one what was there for them."""
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
        failure = "what undone steps have left cannot be removed"
        agent_client.ask(connection, "sweep_steps", {}, failure, deadline=deadline)
