"""System steps on every worker of a slice: what would change, the change, and its undoing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tpukit.clock import Deadline
from tpukit.errors import Fix, ProvisionFailed, TpukitError
from tpukit.models import Documented, worker_names
from tpukit.provision.provision_report import StepReport, WorkerProvisionReport
from tpukit.provision.system_facts import (
    MARK,
    Ledger,
    SystemFacts,
    read_system_facts,
    refusal,
    refused,
)
from tpukit.provision.system_steps import WantedStep, entry, sweep_program, undo_program
from tpukit.provision.worker_jobs import OnEvent, WorkerJobs
from tpukit.remote.command.fan_out import Outcome, fan_out, values
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.text import one_line


@dataclass(frozen=True)
class SystemPlan:
    """What is true on each worker, and the steps that were asked for there."""

    steps: tuple[WantedStep, ...]
    facts: Mapping[int, SystemFacts]

    def needed(self, worker: int, step: WantedStep) -> list[str]:
        """Return what a step would change on a worker; nothing where all is as it should be."""
        return self.facts[worker].steps[step.word].needed


@dataclass(frozen=True)
class WorkerUndoReport(Documented):
    """What was taken back on one worker. `error` is empty unless that failed."""

    _derived = ("ok",)
    worker: int
    undone: tuple[str, ...] = ()
    error: str = ""
    log_tail: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.error


def read_plan(
    workers: Sequence[RemoteWorker], steps: Sequence[WantedStep], deadline: Deadline
) -> SystemPlan:
    """Return what the steps would change on every worker, which changes nothing.

    Raises `TpukitError` where a worker's facts cannot be read.
    """

    def read(worker: RemoteWorker) -> SystemFacts:
        jobs = WorkerJobs(worker, deadline, lambda event: None)
        return jobs.briefly(partial(read_system_facts, tuple(steps)))

    found = values(fan_out(workers, read, window=max(1, len(workers))))
    return SystemPlan(
        tuple(steps), {worker.index: each for worker, each in zip(workers, found, strict=True)}
    )


def check_plan(plan: SystemPlan) -> None:
    """Raise `ProvisionFailed` for the first thing that stands in the way on any worker."""
    for step in plan.steps:
        refusals: dict[str, list[int]] = {}
        for worker, facts in plan.facts.items():
            if cause := facts.steps[step.word].refused:
                refusals.setdefault(cause, []).append(worker)
        for cause, where in refusals.items():
            error = refused(cause, plan.facts[where[0]].steps[step.word].fix)
            error.reason = f"step {step.word}, {worker_names(where)}"
            error.why = "nothing was changed"
            raise error
    for worker, facts in plan.facts.items():
        wanted = [step for step in plan.steps if plan.needed(worker, step)]
        room = sum(step.step.megabytes for step in wanted)
        free = facts.free_kilobytes // 1024
        if free < room:
            raise ProvisionFailed(
                f"worker {worker} has {free} MB of disk free, {room} MB may be needed",
                reason=", ".join(step.word for step in wanted),
                why="nothing was changed",
                fix=Fix(note="make room on the worker, or move its caches to a data disk: disk"),
            )


def apply_steps(
    workers: Sequence[RemoteWorker], plan: SystemPlan, deadline: Deadline, on_event: OnEvent
) -> list[WorkerProvisionReport]:
    """Carry out the plan on every worker and return one report each; none stops the others.

    `on_event` is called from several threads.
    """

    def apply(worker: RemoteWorker) -> WorkerProvisionReport:
        jobs = WorkerJobs(worker, deadline, on_event)
        return _Application(jobs, plan.steps, plan.facts[worker.index]).report()

    return values(fan_out(workers, apply, window=max(1, len(workers))))


def undo_steps(
    workers: Sequence[RemoteWorker],
    words: Sequence[str],
    deadline: Deadline,
    on_event: OnEvent,
) -> list[WorkerUndoReport]:
    """Take back what the ledgers of these words have on each worker, the last change first.

    Without words all that the ledgers have. A worker that fails never stops the others, and is
    never raised: its report has the error.
    """

    def undo(worker: RemoteWorker) -> WorkerUndoReport:
        jobs = WorkerJobs(worker, deadline, on_event)
        with jobs.alone():
            return _undo(jobs, words)

    def report(outcome: Outcome[RemoteWorker, WorkerUndoReport]) -> WorkerUndoReport:
        if outcome.value:
            return outcome.value
        assert outcome.error
        return WorkerUndoReport(outcome.item.index, error=one_line(outcome.error.summary()))

    return [report(each) for each in fan_out(workers, undo, window=max(1, len(workers)))]


class _Application:
    """The system steps of one worker."""

    def __init__(self, jobs: WorkerJobs, steps: Sequence[WantedStep], facts: SystemFacts) -> None:
        self._jobs = jobs
        self._wanted = steps
        self._facts = facts
        self._steps: list[StepReport] = []

    def report(self) -> WorkerProvisionReport:
        """Take every step until one fails."""
        report = WorkerProvisionReport(self._jobs.worker.index, (), emulated=self._facts.emulated)
        try:
            if any(self._facts.steps[step.word].needed for step in self._wanted):
                self._take_all_alone()
            else:
                self._take_all()
        except TpukitError as error:
            failed = f"step {self._steps[-1].name}: " if self._steps else ""
            return replace(
                report,
                steps=tuple(self._steps),
                error=f"{failed}{one_line(error.summary())}",
                cause=error,
                log_tail=tuple(error.details.get("log_tail", ())),
                log_path=one_line(error.details.get("log_path", "")),
            )
        return replace(report, steps=tuple(self._steps))

    def _take_all(self) -> None:
        for step in self._wanted:
            self._take(step)

    def _take_all_alone(self) -> None:
        with self._jobs.alone() as waited:
            if waited:
                self._facts = self._read_facts()
            self._take_all()

    def _read_facts(self) -> SystemFacts:
        return self._jobs.briefly(partial(read_system_facts, self._wanted))

    def _take(self, step: WantedStep) -> None:
        started = self._jobs.deadline.clock.monotonic()

        def finish(outcome: str, detail: str) -> None:
            seconds = self._jobs.deadline.clock.monotonic() - started
            self._steps.append(StepReport(step.word, outcome, detail, seconds))
            self._jobs.tell(step.word, "finished", f"{outcome}: {detail}")

        fact = self._facts.steps[step.word]
        notes = "; ".join(fact.notes)
        if not fact.needed and not fact.refused:
            finish("unchanged", notes or "as it should be")
            return
        try:
            if fact.refused:  # since the plan was made
                raise refused(fact.refused, fact.fix)
            self._jobs.tell(step.word, "started", "; ".join(fact.needed))
            self._change(step)
        except TpukitError as error:
            finish("failed", one_line(error.summary()))
            raise
        finish("changed", "; ".join([*fact.needed, *self._facts.steps[step.word].notes]))

    def _change(self, step: WantedStep) -> None:
        reason = "; ".join(self._facts.steps[step.word].needed)
        shell = step.shell("change")
        _run(self._jobs, step.word, _job(step.entry, shell, self._facts), shell, reason)
        # The steps that come later may see what this one has changed.
        self._facts = self._read_facts()
        now = self._facts.steps[step.word]
        if now.refused:
            raise refused(now.refused, now.fix)
        if now.needed:
            raise ProvisionFailed(
                "its commands succeeded and changed nothing", reason="; ".join(now.needed)
            )


def _run(jobs: WorkerJobs, word: str, job: str, shell: str, reason: str) -> None:
    """Run a step's program as a job; what it refuses is the error in place of its status."""
    try:
        jobs.run(word, job, shell, reason)
    except ProvisionFailed as error:
        cause = refusal(error.details.get("log_tail", ()), reason)
        if cause is None:
            raise
        tail = [each for each in error.details["log_tail"] if not each.startswith(MARK)]
        cause.details = {**error.details, "log_tail": tail}
        raise cause from error


def _job(prefix: str, shell: str, facts: SystemFacts) -> str:
    """Return the id of the job for this attempt: a second one joins it while it runs."""
    digest = hashlib.sha256(shell.encode()).hexdigest()[:12]
    name = f"provision-{prefix}-{digest}-"
    return f"{name}{sum(job.startswith(name) for job in facts.ended_jobs)}"


def _undo(jobs: WorkerJobs, words: Sequence[str]) -> WorkerUndoReport:
    facts = jobs.briefly(partial(read_system_facts, ()))
    ledgers = sorted(facts.ledgers.values(), key=lambda each: each.number, reverse=True)
    chosen = [each for each in ledgers if not words or each.step in words]
    undone: list[str] = []
    for ledger in chosen:
        try:
            _undo_one(jobs, ledger, facts)
        except TpukitError as error:
            return WorkerUndoReport(
                jobs.worker.index,
                tuple(undone),
                f"step {ledger.step}: {one_line(error.summary())}",
                tuple(error.details.get("log_tail", ())),
            )
        undone.append(ledger.step)
    program = sweep_program(tuple(undone)).encode()
    jobs.briefly(lambda connection, limit: connection.run("sh -s", stdin=program, deadline=limit))
    return WorkerUndoReport(jobs.worker.index, tuple(undone))


def _undo_one(jobs: WorkerJobs, ledger: Ledger, facts: SystemFacts) -> None:
    jobs.tell(ledger.step, "started", "undo")
    shell = undo_program(ledger.step)
    job = _job(entry(ledger.step), shell, facts)
    _run(jobs, ledger.step, job, shell, "undo")
    jobs.tell(ledger.step, "finished", "changed: undone")


def require_undone(reports: Sequence[WorkerUndoReport]) -> Sequence[WorkerUndoReport]:
    """Return the reports.

    Raises `ProvisionFailed` where something could not be taken back on a worker.
    """
    failed = [report for report in reports if not report.ok]
    if failed:
        raise ProvisionFailed(
            f"undo failed on {worker_names(each.worker for each in failed)}",
            why="\n".join([failed[0].error, *failed[0].log_tail]),
            fix=Fix(note="mend the cause and type the same command again: what is undone stays so"),
            details={"workers": [each.document() for each in reports]},
        )
    return reports
