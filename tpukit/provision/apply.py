"""Applies recipes to all workers of a slice at once; each worker gets a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from tpukit.clock import Deadline
from tpukit.errors import DeadlinePassed, Fix, ProvisionFailed, TpukitError
from tpukit.provision.facts import Facts
from tpukit.provision.provision_report import ProvisionReport, WorkerProvisionReport, failure
from tpukit.provision.steps import STEPS, Decide, Plan, Run, Upload, check_room, interpreter
from tpukit.provision.system_facts import read_facts, read_system_facts
from tpukit.provision.worker_jobs import OnEvent, WorkerJobs, attempt, is_attempt
from tpukit.ssh.fan_out import fan_out, values
from tpukit.ssh.worker import RemoteWorker

if TYPE_CHECKING:
    from tpukit.ssh.client import Connection


def apply_recipes(
    workers: Sequence[RemoteWorker],
    plans: Sequence[Plan],
    deadline: Deadline,
    on_event: OnEvent,
    known: Mapping[RemoteWorker, Facts] = {},
) -> list[WorkerProvisionReport]:
    """Apply the plans in order on every worker, and return one report each.

    `known` has facts that are still true; other workers' facts are read. A worker that fails does
    not stop the others. Several threads call `on_event`.
    """

    def apply(worker: RemoteWorker) -> WorkerProvisionReport:
        jobs, facts, python = WorkerJobs(worker, deadline, on_event), known.get(worker), ""
        try:
            facts = facts or jobs.briefly(read_facts)
            if len(plans) > 1:  # with one plan, its step `disk` checks this before any change
                check_room(facts, plans)
            for plan in plans:
                python = interpreter(facts, plan)
                facts = _Application(jobs, plan, facts).facts_after()
        except TpukitError as error:
            return jobs.report(error, python=python, emulated=bool(facts and facts.host.emulated))
        return jobs.report(None, python=python, emulated=facts.host.emulated)

    return values(fan_out(workers, apply, window=len(workers)))


def require_provisioned(report: ProvisionReport) -> ProvisionReport:
    """Return the report, or raise one error for the failed workers, with all reports in `details`.

    Raises:
        ProvisionFailed: a step failed on a worker.
        DeadlinePassed: a worker was not done in time; its job goes on.
        TpukitError: a worker could not be reached; the error has the class of the cause.
    """
    if report.ok:
        return report
    first, error = failure("provisioning failed", report.workers, report.document())
    log = f"read the whole log on the worker: {first.log_path}; " if first.log_path else ""
    note = f"{log}fix the cause and run the same command again: it continues"
    if isinstance(error, DeadlinePassed):
        note = "run the same command with a longer --timeout: it joins the steps that still run"
    error.fix = error.fix or Fix(note=note)
    raise error


class _Application:
    """The steps of one plan on a worker; `_facts` hold until a step changes something."""

    def __init__(self, jobs: WorkerJobs, plan: Plan, facts: Facts) -> None:
        self._jobs = jobs
        self._plan = plan
        self._facts = facts

    def facts_after(self) -> Facts:
        """Take every step and return the facts after them; raise `TpukitError` if one fails."""
        settled = self._is_settled()
        with nullcontext(False) if settled else self._jobs.alone() as waited:
            if waited:
                self._facts = self._jobs.briefly(read_facts)
            if not settled and any(venv.installing for venv in self._facts.venvs):
                self._let_installing_end()
            for step, decide in STEPS.items():
                self._jobs.take(self._plan.label(step), partial(self._take, step, decide))
        return self._facts

    def _is_settled(self) -> bool:
        """Return True if no step needs a change."""
        with suppress(ProvisionFailed):
            return not any(decide(self._facts, self._plan).commands for decide in STEPS.values())
        return False

    def _let_installing_end(self) -> None:
        """Wait for jobs of a client that is gone. The step `packages` joins its own job."""
        for job in self._jobs.briefly(partial(read_system_facts, ())).open_jobs:
            if not is_attempt(job, "packages"):
                self._jobs.outwait(job)
        self._facts = self._jobs.briefly(read_facts)  # a job may have ended before the wait

    def _take(self, step: str, decide: Decide) -> tuple[str, str]:
        """Take a step if it needs a change; return its outcome and the reason.

        Raises `ProvisionFailed` if it still needs one afterwards.
        """
        decision = decide(self._facts, self._plan)
        if not decision.commands:
            return "unchanged", decision.reason
        label = self._plan.label(step)
        self._jobs.tell(label, "started", decision.reason)
        for command in decision.commands:
            if isinstance(command, Run):
                job = attempt(step, command.shell, self._facts.ended_jobs)
                self._jobs.run(label, job, command.shell, decision.reason)
            else:
                self._jobs.briefly(partial(_write, command))
        self._facts = self._jobs.briefly(read_facts)
        now = decide(self._facts, self._plan)
        if now.commands:
            raise ProvisionFailed("its commands succeeded and changed nothing", reason=now.reason)
        return "changed", now.reason


def _write(file: Upload, connection: Connection, limit: Deadline) -> None:
    connection.upload(file.data, file.path, deadline=limit)
