"""Apply the steps to every worker of a slice at once, with one report each."""

from __future__ import annotations

import hashlib
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING

from tpukit.clock import Deadline
from tpukit.errors import (
    DeadlinePassed,
    Fix,
    ProvisionFailed,
    TpukitError,
    decisive,
)
from tpukit.models import worker_names
from tpukit.provision.facts import Facts, read_facts
from tpukit.provision.provision_report import ProvisionReport, StepReport, WorkerProvisionReport
from tpukit.provision.recipes import Recipe
from tpukit.provision.requirements import Requirements
from tpukit.provision.steps import STEPS, Decision, Plan, Run, Step, Upload, interpreter
from tpukit.provision.worker_jobs import OnEvent, ProvisionEvent, WorkerJobs
from tpukit.remote.command.fan_out import fan_out
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.text import one_line

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
    lock = threading.Lock()
    deadline = deadline.within(PROVISION_SECONDS)

    def emit(event: ProvisionEvent) -> None:
        with lock:
            on_event(event)

    def apply(worker: RemoteWorker) -> WorkerProvisionReport:
        jobs = WorkerJobs(worker, deadline, emit)
        return _Application(jobs, Plan(recipe, requirements)).report()

    outcomes = fan_out(workers, apply, window=max(1, len(workers)))
    return ProvisionReport(recipe.name, tuple(each.value for each in outcomes if each.value))


def require_provisioned(report: ProvisionReport) -> ProvisionReport:
    """Return the report, or raise for the workers that failed, with all reports in `details`.

    Raises:
        ProvisionFailed: a step failed on a worker.
        DeadlinePassed: a worker was not done in time; its job goes on.
        TpukitError: a worker could not be reached: the class of the error that says why.
    """
    if report.ok:
        return report
    failed = [worker for worker in report.workers if not worker.ok]
    cause = decisive(worker.cause for worker in failed)
    kind = type(cause) if cause else ProvisionFailed
    first = next((each for each in failed if cause and each.cause is cause), failed[0])
    fix = (
        Fix(note=f"read the whole log on the worker: {first.log_path}") if first.log_path else None
    )
    if kind is DeadlinePassed:
        fix = Fix(note="type the same command with a longer --timeout: it joins what still runs")
    raise kind(
        f"provisioning failed on {worker_names(worker.worker for worker in failed)}",
        why="\n".join([first.error, *first.log_tail]),
        exists=cause.exists if cause else (),
        fix=(cause.fix if cause else None) or fix,
        details=report.document(),
    )


class _Application:
    """The steps of one worker."""

    def __init__(self, jobs: WorkerJobs, plan: Plan) -> None:
        self._jobs = jobs
        self._plan = plan
        self._steps: list[StepReport] = []
        self._facts: Facts | None = None

    def report(self) -> WorkerProvisionReport:
        """Take every step until one fails."""
        try:
            facts = self._read_facts()
            if self._settled(facts):
                self._take_all(facts)
            else:
                self._take_all_alone(facts)
        except TpukitError as error:
            return self._reported(error)
        return self._reported(None)

    def _settled(self, facts: Facts) -> bool:
        """Return whether nothing has to be done."""
        with suppress(ProvisionFailed):
            return not any(step.decide(facts, self._plan).commands for step in STEPS)
        return False

    def _take_all(self, facts: Facts) -> None:
        for step in STEPS:
            facts = self._take(step, facts)

    def _take_all_alone(self, facts: Facts) -> None:
        python = facts.pythons[0].path if facts.pythons else "python3"
        with self._jobs.alone(python) as waited:
            self._take_all(self._read_facts() if waited else facts)

    def _read_facts(self) -> Facts:
        self._facts = self._jobs.briefly(read_facts)
        return self._facts

    def _take(self, step: Step, facts: Facts) -> Facts:
        """Take one step and return the facts after it."""
        started = self._jobs.deadline.clock.monotonic()

        def finish(outcome: str, detail: str) -> None:
            seconds = self._jobs.deadline.clock.monotonic() - started
            self._steps.append(StepReport(step.name, outcome, detail, seconds))
            self._jobs.tell(step.name, "finished", f"{outcome}: {detail}")

        try:
            decision = step.decide(facts, self._plan)
            if not decision.commands:
                finish("unchanged", decision.reason)
                return facts
            self._jobs.tell(step.name, "started", decision.reason)
            facts, now = self._carry_out(step, decision, facts)
            finish("changed", now.reason)
            return facts
        except TpukitError as error:
            finish("failed", one_line(error.summary()))
            raise

    def _carry_out(self, step: Step, decision: Decision, facts: Facts) -> tuple[Facts, Decision]:
        """Run a step's commands until nothing more is needed, and return the facts that show it."""
        for command in decision.commands:
            if isinstance(command, Run):
                job = job_name(step, command, facts)
                with _naming_the_cause():
                    self._jobs.run(step.name, job, command.shell, decision.reason)
            else:
                self._jobs.briefly(partial(_write, command))
        after = self._read_facts()
        now = step.decide(after, self._plan)
        if now.commands:
            raise ProvisionFailed("its commands succeeded and changed nothing", reason=now.reason)
        return after, now

    def _reported(self, error: TpukitError | None) -> WorkerProvisionReport:
        details = error.details if error else {}
        return WorkerProvisionReport(
            worker=self._jobs.worker.index,
            steps=tuple(self._steps),
            python=interpreter(self._facts, self._plan) if self._facts else "",
            emulated=self._facts.host.emulated if self._facts else False,
            error=self._named(error) if error else "",
            cause=error,
            log_tail=tuple(details.get("log_tail", ())),
            log_path=one_line(details.get("log_path", "")),
        )

    def _named(self, error: TpukitError) -> str:
        failed = [step.name for step in self._steps if step.outcome == "failed"]
        return (
            f"step {failed[0]}: {one_line(error.summary())}"
            if failed
            else one_line(error.summary())
        )


def job_name(step: Step, command: Run, facts: Facts) -> str:
    """Return the id of the job for this attempt at a command.

    The same command after the same number of ended attempts is the same job: a client that was
    killed and is typed again finds its job running; after an attempt that failed comes a new one.
    """
    digest = hashlib.sha256(command.shell.encode()).hexdigest()[:12]
    prefix = f"provision-{step.name}-{digest}-"
    return f"{prefix}{sum(job.startswith(prefix) for job in facts.ended_jobs)}"


@contextmanager
def _naming_the_cause() -> Iterator[None]:
    """Let an installation that fails for a reason that is known say so, and what helps."""
    try:
        yield
    except ProvisionFailed as error:
        log = "\n".join(error.details.get("log_tail", ()))
        table = files("tpukit.provision").joinpath("install_failures.toml").read_text("utf-8")
        for known in tomllib.loads(table)["failures"]:
            if any(text in log for text in known["texts"]):
                error.what, error.reason = known["what"], ""
                error.fix = Fix(note=known["fix"])
                break
        raise


def _write(file: Upload, connection: Connection, limit: Deadline) -> None:
    connection.upload(file.data, file.path, deadline=limit)
