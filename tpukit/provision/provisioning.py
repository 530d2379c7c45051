"""Everything that was asked for on every worker: the system's steps first, then each recipe.

What would be done, what is done, and what was done; undo.py takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpukit.clock import Deadline
from tpukit.errors import ProvisionFailed
from tpukit.models import Documented
from tpukit.provision import system_steps
from tpukit.provision.apply import PROVISION_SECONDS, apply_recipes
from tpukit.provision.facts import Facts, Venv
from tpukit.provision.provision_report import ProvisionReport, StepReport
from tpukit.provision.requirements import Requirements
from tpukit.provision.steps import STEPS, Plan
from tpukit.provision.system_apply import SystemPlan, apply_steps, check_plan, read_plan
from tpukit.provision.system_facts import Ledger
from tpukit.provision.wanted import Wanted
from tpukit.provision.worker_jobs import OnEvent, one_at_a_time
from tpukit.remote.connection.worker import RemoteWorker


@dataclass(frozen=True)
class WorkerPlan(Documented):
    """What would be done on one worker: a step is `needed`, `unchanged` or `refused`."""

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
    """What tpukit has brought to one worker; `needed` is what of a step no longer holds."""

    worker: int
    ledgers: tuple[Ledger, ...]
    needed: dict[str, list[str]]
    environments: tuple[Venv, ...]
    slice: str = ""

    def document(self) -> dict[str, Any]:
        """Return the public JSON value."""
        steps = [
            {**each.document(), "needed": self.needed.get(each.step, [])} for each in self.ledgers
        ]
        environments = [
            {"name": each.name, "python": each.version, "verified": bool(each.verified)}
            for each in self.environments
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
    """Return what `provision_all` would do on each worker; changes nothing.

    Raises `TpukitError` where a worker's facts cannot be read.
    """
    recipes = _plans(wanted, requirements)
    plan = read_plan(workers, wanted.steps, deadline, environments=bool(recipes))
    return [_worker_plan(plan, each, recipes) for each in workers]


def provision_all(
    workers: Sequence[RemoteWorker],
    wanted: Wanted,
    *,
    requirements: Requirements | None = None,
    deadline: Deadline,
    on_event: OnEvent = lambda event: None,
    prepare: Callable[[], object] = lambda: None,
) -> ProvisionReport:
    """Bring every worker to what is wanted and return one report each.

    What stands in a step's way on any worker is raised before the first change on any; `prepare` is
    called after that. A worker that fails later stops none of the others: its report has the error.
    `on_event` is called from one thread at a time.

    Raises:
        ProvisionFailed: a step cannot be, or there is no room for it.
        TpukitError: a worker's facts cannot be read.
    """
    deadline, tell = deadline.within(PROVISION_SECONDS), one_at_a_time(on_event)
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
        left = [each for each in workers if reports[each].ok]
        same = {each: plan.environments[each] for each in left if not reports[each].changes}
        done = apply_recipes(left, recipes, deadline, tell, same)
        for worker, report in zip(left, done, strict=True):
            reports[worker] = replace(report, steps=reports[worker].steps + report.steps)
    return ProvisionReport(name, tuple(reports[each] for each in workers))


def environments_on(workers: Sequence[RemoteWorker], deadline: Deadline) -> frozenset[str]:
    """Return the names of the environments that are on any worker: those of recipes.

    Raises `TpukitError` where a worker's facts cannot be read.
    """
    found = read_plan(workers, (), deadline, environments=True).environments
    return frozenset(venv.name for facts in found.values() for venv in facts.venvs)


def status_all(workers: Sequence[RemoteWorker], *, deadline: Deadline) -> list[WorkerStatus]:
    """Return what tpukit has brought to each worker.

    Raises `TpukitError` where a worker's facts cannot be read.
    """
    known = read_plan(workers, (), deadline, environments=True)
    ledgers = {each.step: each for facts in known.facts.values() for each in facts.ledgers.values()}
    steps = tuple(
        replace(system_steps.parse(word), value=ledger.value)
        for word, ledger in sorted(ledgers.items())
        if system_steps.is_step(word)
    )
    plan = read_plan(workers, steps, deadline) if steps else known
    return [_worker_status(plan, worker, known.environments[worker]) for worker in workers]


def _plans(wanted: Wanted, requirements: Requirements | None) -> list[Plan]:
    several = len(wanted.recipes) > 1
    return [Plan(each, requirements, several) for each in wanted.recipes]


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
    """Return the steps of a recipe as the facts are now: a later one may need what comes before."""
    steps: list[StepReport] = []
    for step in STEPS:
        name = plan.label(step.name)
        before = [each.name for each in steps if each.outcome == "needed"]
        try:
            decision = step.decide(facts, plan)
        except ProvisionFailed as error:
            if not before:
                return [*steps, StepReport(name, "refused", error.summary())]
            steps.append(StepReport(name, "needed", f"after {before[-1]}"))
            continue
        outcome = "needed" if decision.commands else "unchanged"
        steps.append(StepReport(name, outcome, decision.reason))
    return steps


def _worker_status(plan: SystemPlan, worker: RemoteWorker, facts: Facts) -> WorkerStatus:
    found = plan.facts[worker]
    ledgers = sorted(found.ledgers.values(), key=lambda each: each.number)
    needed = {word: fact.needed for word, fact in found.steps.items() if word in found.ledgers}
    return WorkerStatus(worker.index, tuple(ledgers), needed, facts.venvs, worker.slice)
