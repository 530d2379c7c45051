"""Plans, applies and reports provisioning on every worker: system steps first, then recipes.

`undo.py` reverses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpukit.clock import Deadline
from tpukit.errors import ProvisionFailed
from tpukit.models import Documented
from tpukit.provision import system_steps
from tpukit.provision.apply import apply_recipes
from tpukit.provision.facts import Facts, Venv
from tpukit.provision.provision_report import ProvisionReport, StepReport
from tpukit.provision.requirements import Requirements
from tpukit.provision.steps import STEPS, Plan
from tpukit.provision.system_apply import SystemPlan, apply_steps, check_plan, read_plan
from tpukit.provision.system_facts import Ledger
from tpukit.provision.wanted import Wanted
from tpukit.provision.worker_jobs import OnEvent, one_at_a_time
from tpukit.ssh.worker import RemoteWorker

#: The most seconds that provisioning may take; the deadline can be earlier.
_SECONDS = 1800.0


@dataclass(frozen=True)
class WorkerPlan(Documented):
    """The planned steps of one worker; an outcome is `needed`, `unchanged` or `refused`."""

    _derived = ("changes",)
    worker: int
    steps: tuple[StepReport, ...]
    emulated: bool = False
    slice: str = ""

    @property
    def changes(self) -> int:
        return sum(step.outcome == "needed" for step in self.steps)

    @property
    def refused(self) -> bool:
        return any(step.outcome == "refused" for step in self.steps)


@dataclass(frozen=True)
class WorkerStatus:
    """The steps and environments that tpukit has brought to one worker.

    `needed` has the changes that a step would need again, by the step's word.
    """

    worker: int
    ledgers: tuple[Ledger, ...]
    needed: dict[str, list[str]]
    environments: tuple[Venv, ...]
    slice: str = ""

    def document(self) -> dict[str, Any]:
        """Return the public JSON value."""
        steps = [
            {**ledger.document(), "needed": self.needed.get(ledger.step, [])}
            for ledger in self.ledgers
        ]
        environments = [
            {"name": venv.name, "python": venv.version, "verified": bool(venv.verified)}
            for venv in self.environments
        ]
        place = {"worker": self.worker, "slice": self.slice}
        return {**place, "steps": steps, "environments": environments}


def plan_all(
    workers: Sequence[RemoteWorker],
    wanted: Wanted,
    *,
    requirements: Requirements | None = None,
    deadline: Deadline,
) -> list[WorkerPlan]:
    """Return the changes that `provision_all` would make on each worker; change nothing.

    Raises `TpukitError` if a worker's facts cannot be read.
    """
    recipes = _plans(wanted, requirements)
    plan = read_plan(workers, wanted.steps, deadline, environments=bool(recipes))
    return [_worker_plan(plan, worker, recipes) for worker in workers]


def provision_all(
    workers: Sequence[RemoteWorker],
    wanted: Wanted,
    *,
    requirements: Requirements | None = None,
    deadline: Deadline,
    on_event: OnEvent = lambda event: None,
    prepare: Callable[[], object] = lambda: None,
) -> ProvisionReport:
    """Apply system steps, then recipes, to every worker, and return one report each.

    If there are system steps, all workers are checked before the first change, and `prepare` is
    called after the check. If a worker fails later, the others go on, and its report has the error.
    Only one thread at a time calls `on_event`.

    Raises:
        ProvisionFailed: a worker refuses a system step or a recipe, or lacks disk space.
        TpukitError: a worker's facts cannot be read.
    """
    deadline, tell = deadline.within(_SECONDS), one_at_a_time(on_event)
    recipes = _plans(wanted, requirements)
    name = wanted.recipes[0].name if recipes else ""
    if not wanted.steps:
        return ProvisionReport(name, tuple(apply_recipes(workers, recipes, deadline, tell)))
    plan = read_plan(workers, wanted.steps, deadline, environments=bool(recipes))
    check_plan(plan, recipes)
    prepare()
    applied = apply_steps(workers, plan, deadline, tell)
    reports = dict(zip(workers, applied, strict=True))
    if recipes:
        left = [worker for worker in workers if reports[worker].ok]
        same = {worker: plan.environments[worker] for worker in left if not reports[worker].changes}
        done = apply_recipes(left, recipes, deadline, tell, same)
        for worker, report in zip(left, done, strict=True):
            reports[worker] = replace(report, steps=reports[worker].steps + report.steps)
    return ProvisionReport(name, tuple(reports[worker] for worker in workers))


def environments_on(workers: Sequence[RemoteWorker], deadline: Deadline) -> frozenset[str]:
    """Return the names of all environments of recipes on the workers.

    Raises `TpukitError` if a worker's facts cannot be read.
    """
    known = read_plan(workers, (), deadline, environments=True).environments
    return frozenset(venv.name for facts in known.values() for venv in facts.venvs)


def status_all(workers: Sequence[RemoteWorker], *, deadline: Deadline) -> list[WorkerStatus]:
    """Return the steps and environments that tpukit has brought to each worker.

    Raises `TpukitError` if a worker's facts cannot be read.
    """
    known = read_plan(workers, (), deadline, environments=True)
    ledgers = {
        ledger.step: ledger for facts in known.facts.values() for ledger in facts.ledgers.values()
    }
    steps = tuple(
        replace(system_steps.parse(word), value=ledger.value)
        for word, ledger in sorted(ledgers.items())
        if system_steps.is_step(word)
    )
    plan = read_plan(workers, steps, deadline) if steps else known
    return [_worker_status(plan, worker, known.environments[worker]) for worker in workers]


def _plans(wanted: Wanted, requirements: Requirements | None) -> list[Plan]:
    several = len(wanted.recipes) > 1
    return [Plan(recipe, requirements, several) for recipe in wanted.recipes]


def _worker_plan(plan: SystemPlan, worker: RemoteWorker, recipes: Iterable[Plan]) -> WorkerPlan:
    steps: list[StepReport] = []
    for step in plan.steps:
        fact = plan.facts[worker].steps[step.word]
        if fact.refused:
            steps.append(StepReport(step.word, "refused", f"{fact.refused}; {fact.fix}"))
        elif fact.needed:
            steps.append(StepReport(step.word, "needed", "; ".join(fact.needed)))
        else:
            detail = "; ".join(fact.notes) or "as it should be"
            steps.append(StepReport(step.word, "unchanged", detail))
    for recipe in recipes:
        steps += _recipe_plan(recipe, plan.environments[worker])
    emulated = plan.facts[worker].emulated
    return WorkerPlan(worker.index, tuple(steps), emulated, worker.slice)


def _recipe_plan(plan: Plan, facts: Facts) -> list[StepReport]:
    """Return a recipe's steps by the current facts.

    A step that fails on these facts is `needed` if an earlier step would change them first.
    """
    steps: list[StepReport] = []
    for step, decide in STEPS.items():
        name = plan.label(step)
        before = [report.name for report in steps if report.outcome == "needed"]
        try:
            decision = decide(facts, plan)
        except ProvisionFailed as error:
            if not before:
                return [*steps, StepReport(name, "refused", error.summary())]
            steps.append(StepReport(name, "needed", f"after {before[-1]}"))
            continue
        outcome = "needed" if decision.commands else "unchanged"
        steps.append(StepReport(name, outcome, decision.reason))
    return steps


def _worker_status(plan: SystemPlan, worker: RemoteWorker, facts: Facts) -> WorkerStatus:
    system = plan.facts[worker]
    ledgers = sorted(system.ledgers.values(), key=lambda ledger: ledger.number)
    needed = {word: fact.needed for word, fact in system.steps.items() if word in system.ledgers}
    return WorkerStatus(worker.index, tuple(ledgers), needed, facts.venvs, worker.slice)
