"""Plans and applies system steps on every worker of a slice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from tpukit.clock import Deadline
from tpukit.errors import Fix, ProvisionFailed, TpukitError
from tpukit.models import names_of_workers
from tpukit.provision.facts import Facts
from tpukit.provision.kernel_log import kernel_log_advice
from tpukit.provision.provision_report import WorkerProvisionReport
from tpukit.provision.steps import Plan, check_room, system
from tpukit.provision.system_facts import (
    SystemFacts,
    WorkerFacts,
    read_all_facts,
    read_system_facts,
    refusal,
    refused,
)
from tpukit.provision.system_steps import WantedStep, entry
from tpukit.provision.worker_jobs import OnEvent, WorkerJobs, attempt
from tpukit.ssh import agent_client
from tpukit.ssh.fan_out import fan_out, values
from tpukit.ssh.worker import RemoteWorker


@dataclass(frozen=True)
class SystemPlan:
    """The requested steps, and the facts of each worker."""

    steps: tuple[WantedStep, ...]
    facts: Mapping[RemoteWorker, SystemFacts]
    environments: Mapping[RemoteWorker, Facts] = field(default_factory=dict)  #: if requested

    def needed(self, worker: RemoteWorker, step: WantedStep) -> list[str]:
        """Return the changes that a step needs on a worker; empty if it needs none."""
        return self.facts[worker].steps[step.word].needed


def read_plan(
    workers: Sequence[RemoteWorker],
    steps: Sequence[WantedStep],
    deadline: Deadline,
    *,
    environments: bool = False,
) -> SystemPlan:
    """Read the facts of every worker in one round trip each; change nothing.

    With `environments`, read the facts for recipes too. Raises `TpukitError` if a worker's facts
    cannot be read.
    """

    def read(worker: RemoteWorker) -> WorkerFacts:
        jobs = WorkerJobs(worker, deadline, lambda event: None)
        return jobs.briefly(partial(read_all_facts, steps, environments))

    known = dict(zip(workers, values(fan_out(workers, read, window=len(workers))), strict=True))
    return SystemPlan(
        tuple(steps),
        {worker: facts.system for worker, facts in known.items()},
        {worker: facts.environments for worker, facts in known.items() if facts.environments},
    )


def check_plan(plan: SystemPlan, recipes: Sequence[Plan] = ()) -> None:
    """Raise `ProvisionFailed` if any worker refuses a step or lacks the disk space.

    Also raise it if a worker is unsuitable, or too small, for the recipes that follow the steps.
    """
    for step in plan.steps:
        refusals: dict[str, list[RemoteWorker]] = {}
        for worker, facts in plan.facts.items():
            if cause := facts.steps[step.word].refused:
                refusals.setdefault(cause, []).append(worker)
        for cause, workers in refusals.items():
            error = refused(cause, plan.facts[workers[0]].steps[step.word].fix)
            places = [(worker.slice, worker.index) for worker in workers]
            named = names_of_workers(places, several=workers[0].slices > 1)
            error.reason = f"step {step.word}, {named}"
            error.why = "nothing was changed"
            raise error
    for worker, facts in plan.facts.items():
        wanted = [step for step in plan.steps if plan.needed(worker, step)]
        room = sum(step.step.megabytes for step in wanted)
        free = facts.free_kilobytes // 1024
        if free < room:
            raise ProvisionFailed(
                f"{worker.name} has only {free} MB of disk free, but {room} MB may be needed",
                reason=", ".join(step.word for step in wanted),
                why="\n".join(
                    filter(None, ["nothing was changed", kernel_log_advice(facts.kernel_log_bytes)])
                ),
                fix=Fix(note="make room on the worker, or move its caches to a data disk: disk"),
            )
        if recipes:
            _check_recipes(worker, plan.environments[worker], recipes, wanted, facts)


def _check_recipes(
    worker: RemoteWorker,
    own: Facts,
    recipes: Sequence[Plan],
    wanted: Sequence[WantedStep],
    facts: SystemFacts,
) -> None:
    """Raise `ProvisionFailed` if a worker is unsuitable for the recipes, or lacks the space."""
    # The steps use the system's disk: if the home folder is on another one, their need does not
    # count. If a step moves caches to a data disk, the space that it frees is unknown until then,
    # so the recipe's own step `disk` checks later.
    one_disk = own.host.free_kilobytes <= facts.free_kilobytes
    besides = sum(step.step.megabytes for step in wanted) if one_disk else 0
    try:
        for recipe in recipes:
            system(own, recipe)
        if not any(step.step.makes_room for step in wanted):
            check_room(own, recipes, besides)
    except ProvisionFailed as error:
        error.reason = ", ".join(filter(None, (worker.name, error.reason)))
        error.why = "nothing was changed"
        raise


def apply_steps(
    workers: Sequence[RemoteWorker], plan: SystemPlan, deadline: Deadline, on_event: OnEvent
) -> list[WorkerProvisionReport]:
    """Apply the plan on every worker and return one report each.

    A worker that fails does not stop the others. Several threads call `on_event`.
    """

    def apply(worker: RemoteWorker) -> WorkerProvisionReport:
        jobs = WorkerJobs(worker, deadline, on_event)
        return _Application(jobs, plan.steps, plan.facts[worker]).report()

    return values(fan_out(workers, apply, window=len(workers)))


class _Application:
    """The system steps of one worker; `_facts` hold until a step changes something."""

    def __init__(self, jobs: WorkerJobs, steps: Sequence[WantedStep], facts: SystemFacts) -> None:
        self._jobs = jobs
        self._wanted = steps
        self._facts = facts

    def report(self) -> WorkerProvisionReport:
        """Take every step until one fails."""
        settled = not any(self._facts.steps[step.word].needed for step in self._wanted)
        try:
            with nullcontext(False) if settled else self._jobs.alone() as waited:
                if waited:
                    self._facts = self._read_facts()
                for step in self._wanted:
                    self._jobs.take(step.word, partial(self._take, step))
        except TpukitError as error:
            return self._jobs.report(error, emulated=self._facts.emulated)
        return self._jobs.report(None, emulated=self._facts.emulated)

    def _read_facts(self) -> SystemFacts:
        return self._jobs.briefly(partial(read_system_facts, self._wanted))

    def _take(self, step: WantedStep) -> tuple[str, str]:
        """Take a step if it needs a change; return its outcome and the reason.

        Raises `ProvisionFailed` if the worker refuses it, or if it still needs a change afterwards.
        """
        fact = self._facts.steps[step.word]
        if fact.refused:  # since the plan was made
            raise refused(fact.refused, fact.fix)
        if not fact.needed:
            return "unchanged", "; ".join(fact.notes) or "as it should be"
        needed = "; ".join(fact.needed)
        self._jobs.tell(step.word, "started", needed)
        command = agent_client.job_command("change_step", step.request, "python3")
        run_job(self._jobs, step.word, command, self._facts.ended_jobs, needed)
        # Later steps may depend on this change.
        self._facts = self._read_facts()
        now = self._facts.steps[step.word]
        if now.refused:
            raise refused(now.refused, now.fix)
        if now.needed:
            reason = "; ".join(now.needed)
            raise ProvisionFailed("its commands succeeded and changed nothing", reason=reason)
        return "changed", "; ".join([*fact.needed, *now.notes])


def run_job(jobs: WorkerJobs, word: str, command: str, ended: Collection[str], reason: str) -> None:
    """Run a step's command as a new attempt, or join the attempt that runs already.

    Raises the errors of `WorkerJobs.run`; if the agent refuses the step, the refusal instead.
    """
    try:
        jobs.run(word, attempt(entry(word), command, ended), command, reason)
    except ProvisionFailed as error:
        tail = error.details.get("log_tail", ())
        cause = refusal(tail, reason)
        if cause is None:
            raise
        answers = agent_client.ANSWERS.decode()
        tail = [line for line in tail if line and not line.startswith(answers)]
        cause.details = {**error.details, "log_tail": tail}
        raise cause from error
