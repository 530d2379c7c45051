"""Apply the steps to every worker of a slice at once, with one report each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tpukit.clock import Deadline
from tpukit.errors import DeadlinePassed, Fix, ProvisionFailed, TpukitError
from tpukit.provision.facts import Facts
from tpukit.provision.provision_report import ProvisionReport, WorkerProvisionReport, failure
from tpukit.provision.recipes import Recipe
from tpukit.provision.requirements import Requirements
from tpukit.provision.steps import STEPS, Plan, Run, Step, Upload, check_room, interpreter
from tpukit.provision.system_facts import read_facts, read_system_facts
from tpukit.provision.taken_steps import TakenSteps
from tpukit.provision.worker_jobs import OnEvent, WorkerJobs, attempt, is_attempt, one_at_a_time
from tpukit.remote.command.fan_out import fan_out, values
from tpukit.remote.connection.worker import RemoteWorker

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

#: Seconds that provisioning may take at most; the deadline can cut it shorter.
PROVISION_SECONDS = 1800.0


def provision(
    workers: Sequence[RemoteWorker],
    recipe: Recipe,
    *,
    requirements: Requirements | None = None,
    deadline: Deadline,
    on_event: OnEvent = lambda event: None,
) -> ProvisionReport:
    """Bring every worker to what the recipe says and return one report each.

    A worker that fails never stops the others, and is never raised: its report has the error.
    `on_event` is called from one thread at a time.
    """
    deadline, plans = deadline.within(PROVISION_SECONDS), [Plan(recipe, requirements)]
    reports = apply_recipes(workers, plans, deadline, one_at_a_time(on_event))
    return ProvisionReport(recipe.name, tuple(reports))


def apply_recipes(
    workers: Sequence[RemoteWorker],
    plans: Sequence[Plan],
    deadline: Deadline,
    on_event: OnEvent,
    known: Mapping[RemoteWorker, Facts] = {},
) -> list[WorkerProvisionReport]:
    """Bring every worker to what the plans say, one after the other, and return one report each.

    `known` are facts that are still true; workers without are asked. None stops the others.
    `on_event` is called from several threads.
    """

    def apply(worker: RemoteWorker) -> WorkerProvisionReport:
        return _applied(WorkerJobs(worker, deadline, on_event), plans, known.get(worker))

    return values(fan_out(workers, apply, window=len(workers)))


def require_provisioned(report: ProvisionReport) -> ProvisionReport:
    """Return the report, or raise for the workers that failed, with all reports in `details`.

    Raises:
        ProvisionFailed: a step failed on a worker.
        DeadlinePassed: a worker was not done in time; its job goes on.
        TpukitError: a worker could not be reached: the class of the error that says why.
    """
    if report.ok:
        return report
    first, error = failure("provisioning failed", report.workers, report.document())
    log = f"read the whole log on the worker: {first.log_path}; " if first.log_path else ""
    note = f"{log}once the cause is mended, the same command goes on"
    if isinstance(error, DeadlinePassed):
        note = "type the same command with a longer --timeout: it joins what still runs"
    error.fix = error.fix or Fix(note=note)
    raise error


def _applied(jobs: WorkerJobs, plans: Sequence[Plan], facts: Facts | None) -> WorkerProvisionReport:
    """Take the steps of every plan until one fails."""
    taken, python = TakenSteps(jobs), ""
    try:
        facts = facts or jobs.briefly(read_facts)
        if len(plans) > 1:  # for one alone a step sees to it, before any that changes something
            check_room(facts, plans)
        for plan in plans:
            python = interpreter(facts, plan)
            facts = _Application(jobs, plan, facts, taken).facts_after()
    except TpukitError as error:
        return taken.report(error, python=python, emulated=bool(facts and facts.host.emulated))
    return taken.report(None, python=python, emulated=facts.host.emulated)


class _Application:
    """The steps of one plan on a worker; `_facts` are true of it until one changes something."""

    def __init__(self, jobs: WorkerJobs, plan: Plan, facts: Facts, taken: TakenSteps) -> None:
        self._jobs = jobs
        self._plan = plan
        self._facts = facts
        self._taken = taken

    def facts_after(self) -> Facts:
        """Take every step, and return what is true then; raise `TpukitError` as one fails."""
        if self._settled():
            self._take_all()
        else:
            self._take_all_alone()
        return self._facts

    def _settled(self) -> bool:
        """Return whether nothing has to be done."""
        with suppress(ProvisionFailed):
            return not any(step.decide(self._facts, self._plan).commands for step in STEPS)
        return False

    def _take_all_alone(self) -> None:
        with self._jobs.alone() as waited:
            if waited:
                self._facts = self._jobs.briefly(read_facts)
            if any(venv.installing for venv in self._facts.venvs):
                self._let_installing_end()
            self._take_all()

    def _let_installing_end(self) -> None:
        """Wait for what a client that is gone has left installing: that was not cut off.

        What installs the packages themselves is joined by their step.
        """
        for job in self._jobs.briefly(partial(read_system_facts, ())).open_jobs:
            if not is_attempt(job, "packages"):
                self._jobs.outwait(job)
        self._facts = self._jobs.briefly(read_facts)  # it may have ended between two looks

    def _take_all(self) -> None:
        for step in STEPS:
            self._taken.take(self._plan.label(step.name), partial(self._take, step))

    def _take(self, step: Step) -> tuple[str, str]:
        """Do what a step needs, until nothing more is needed; return its outcome and why."""
        decision = step.decide(self._facts, self._plan)
        if not decision.commands:
            return "unchanged", decision.reason
        label = self._plan.label(step.name)
        self._jobs.tell(label, "started", decision.reason)
        for command in decision.commands:
            if isinstance(command, Run):
                job = attempt(step.name, command.shell, self._facts.ended_jobs)
                self._jobs.run(label, job, command.shell, decision.reason)
            else:
                self._jobs.briefly(partial(_write, command))
        self._facts = self._jobs.briefly(read_facts)
        now = step.decide(self._facts, self._plan)
        if now.commands:
            raise ProvisionFailed("its commands succeeded and changed nothing", reason=now.reason)
        return "changed", now.reason


def _write(file: Upload, connection: Connection, limit: Deadline) -> None:
    connection.upload(file.data, file.path, deadline=limit)
