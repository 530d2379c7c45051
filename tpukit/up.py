"""The main job: create, firewall, connect, provision, smoke.

Each stage looks before it acts, so the job typed again does only what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from tpukit.accelerators import AcceleratorType
from tpukit.access import packet_filter, rule_opening, slice_workers
from tpukit.access.context import Context
from tpukit.access.creation import ensure_somewhere
from tpukit.access.rule_opening import Opening
from tpukit.clock import Deadline
from tpukit.errors import SliceLost, TpukitError
from tpukit.models import FirewallRule, Slice
from tpukit.provision.apply import provision, require_provisioned
from tpukit.provision.provision_report import ProvisionReport
from tpukit.provision.recipes import Recipe
from tpukit.provision.requirements import Requirements
from tpukit.provision.worker_jobs import GOES_ON, ProvisionEvent
from tpukit.remote.command.fan_out import fan_out, values
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.slices import refusals
from tpukit.slices.capacity import Search
from tpukit.slices.find import check_still_there
from tpukit.slices.last_seen import last_seen, naming_what_exists
from tpukit.slices.refusals import Refusal
from tpukit.smoke.runner import ensure_computes
from tpukit.smoke.smoke_report import SmokeReport
from tpukit.text import counted
from tpukit.work.guard import GuardReport, install_guard, wants_guard

#: Seconds that connecting may take at most; the whole job's deadline cuts it shorter.
CONNECT_SECONDS = 300.0


@dataclass(frozen=True)
class Progress:
    """What is called with progress: (stage, line) of the job, events of each worker's steps.

    A stage begins with its first line. Of `on_progress` only the latest line matters; `on_done`
    says how a stage has ended. Several stages may run at once. `on_smoke` gets what the smoke test
    has found, good or bad.
    """

    on_stage: Callable[[str, str], None]
    on_progress: Callable[[str, str], None]
    on_done: Callable[[str, str], None]
    on_provision: Callable[[ProvisionEvent], None]
    on_smoke: Callable[[Slice, SmokeReport], None]


@dataclass(frozen=True)
class UpReport:
    """What `up` made sure of, and what of it it had to change."""

    slice: Slice
    created: bool
    opening: Opening | None  #: of the firewall rule, where one was asked for
    guard: GuardReport | None  #: of what ends it by itself, where an end is set
    provision: ProvisionReport
    smoke: SmokeReport
    refusals: Sequence[Refusal] = ()  #: of the places that had no room

    @property
    def changes(self) -> int:
        opened = bool(self.opening and self.opening.changed)
        return int(self.created) + int(opened) + self.provision.changes

    @property
    def exposing(self) -> tuple[FirewallRule, ...]:
        """The rules of others that let the whole world reach port 22 of the slice."""
        rules = self.opening.rules if self.opening else ()
        return packet_filter.open_to_world(rules, self.slice)

    def document(self) -> dict[str, Any]:
        """Return the JSON value."""
        return {
            "slice": self.slice.document(),
            "created": self.created,
            "changes": self.changes,
            "firewall": self._firewall(),
            "guard": self.guard.document() if self.guard else None,
            "provision": self.provision.document(),
            "smoke": self.smoke.document(),
            **refusals.documents(self.refusals),
        }

    def _firewall(self) -> dict[str, Any] | None:
        if self.opening is None:
            return None
        exposing = [rule.name for rule in self.exposing]
        rule = self.opening.rule.document()
        return {**rule, "changed": self.opening.changed, "open_to_world": exposing}


def up(
    context: Context,
    search: Search,
    recipe: Recipe,
    *,
    endpoint: str,
    firewall: bool = True,
    requirements: Requirements | None,
    deadline: Deadline,
    progress: Progress,
) -> UpReport:
    """Make sure that a slice exists where there is room, is reached, provisioned, and computes.

    Without `firewall` no rule is made: the network lets us in already. `endpoint` is that of the
    API, for the guard of a slice whose end is set.

    Raises:
        SliceLost: the slice was preempted, or is gone, at whichever stage.
        ProvisionFailed, SmokeFailed: with every worker's report in `details`.
        TpukitError: whatever a stage raises; the slice stays, and the error says so.
    """
    context = context.within(deadline)
    say, done = progress.on_stage, progress.on_done
    ensured = ensure_somewhere(
        context,
        search,
        firewall=firewall,
        deadline=deadline,
        on_state=lambda state: say("create", state),
    )
    found, opening = ensured.slice, ensured.opening
    deadline = deadline.within(search.seconds)
    context = context.within(deadline, patient=True)
    seen = last_seen(context.provider, found)
    with (
        naming_what_exists(seen),
        _telling_a_loss(context, found, opening),
    ):
        done("create", "created" if ensured.created else "already there")
        if opening:
            found, opening = rule_opening.finish(context, found, opening)
        done("firewall", opening.summary if opening else "no rule asked for")
        workers = _connected(context, found, deadline, progress)
        done("connect", f"{len(workers)} of {len(found.workers)} workers, host keys verified")
        guard = _guarded(workers[0], found, endpoint, deadline, progress)
        seen.begun = GOES_ON
        report = provision(
            workers,
            recipe,
            requirements=requirements,
            deadline=deadline,
            on_event=progress.on_provision,
        )
        seen.begun = ""
        require_provisioned(report)
        done("provision", counted(report.changes, "change"))
        progress.on_progress("smoke", f"computing on {len(workers)} workers")
        result = ensure_computes(
            workers,
            AcceleratorType.parse(found.accelerator_type),
            recipe,
            deadline=deadline,
            on_wait=lambda line: say("smoke", line),
            on_report=lambda tested: progress.on_smoke(found, tested),
        )
        done("smoke", "passed")
    return UpReport(found, ensured.created, opening, guard, report, result, ensured.refusals)


def _guarded(
    worker: RemoteWorker, found: Slice, endpoint: str, deadline: Deadline, progress: Progress
) -> GuardReport | None:
    """Install the guard where an end is set; that there can be none ends no job."""
    if not wants_guard(found):
        return None
    progress.on_progress("guard", "on worker 0")
    try:
        report = install_guard(worker, found, endpoint, deadline=deadline)
    except TpukitError as error:
        report = GuardReport("", None, why=error.summary())
    progress.on_done("guard", report.summary)
    return report


@contextmanager
def _telling_a_loss(context: Context, found: Slice, opening: Opening | None) -> Iterator[None]:
    """If the slice is lost, raise that, whatever failed on it first; its rule is left."""
    try:
        try:
            yield
        except TpukitError:
            check_still_there(context.provider, found)
            raise
    except SliceLost as lost:
        if opening:
            opening.note_left(lost)
        raise


def _connected(
    context: Context, found: Slice, deadline: Deadline, progress: Progress
) -> Sequence[RemoteWorker]:
    """Return the workers once every one has answered over authenticated SSH."""
    limit, answered = deadline.within(CONNECT_SECONDS), count(1)
    progress.on_progress("connect", f"0/{len(found.workers)} workers")
    workers = slice_workers.workers(
        context,
        [found],
        "all",
        limit,
        limit.remaining(),
        on_wait=lambda line: progress.on_stage("connect", line),
    )

    def connect(worker: RemoteWorker) -> None:
        worker.connect().close()
        progress.on_progress("connect", f"{next(answered)}/{len(workers)} workers")

    values(fan_out(workers, connect))
    return workers
