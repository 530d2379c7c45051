"""The main job: create, firewall, connect, provision, smoke.

Each stage looks before it acts, so running the job again does only the missing work.
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
from tpukit.jobs.guard import GuardReport, install_guard, wants_guard
from tpukit.models import FirewallRule, Slice
from tpukit.provision.apply import require_provisioned
from tpukit.provision.provision_report import ProvisionReport
from tpukit.provision.provisioning import provision_all
from tpukit.provision.recipes import Recipe
from tpukit.provision.requirements import Requirements
from tpukit.provision.wanted import Wanted
from tpukit.provision.worker_jobs import GOES_ON, ProvisionEvent
from tpukit.slices import refusals
from tpukit.slices.capacity import Search
from tpukit.slices.last_seen import last_seen, naming_what_exists
from tpukit.slices.losses import check_still_there
from tpukit.slices.refusals import Refusal
from tpukit.smoke.runner import QUICK, Load, ensure_computes
from tpukit.smoke.smoke_report import SmokeReport
from tpukit.ssh.fan_out import fan_out, values
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import counted

#: The most seconds for connecting; the deadline of the whole job may be earlier.
CONNECT_SECONDS = 300.0


@dataclass(frozen=True)
class Progress:
    """The callbacks for progress. The first three get a stage and a line.

    A stage begins with its first line and ends with `on_done`; stages may overlap. A line of
    `on_progress` replaces the one before. `on_provision` gets the events of each worker's steps,
    and `on_slice` the slice when it is READY.
    """

    on_stage: Callable[[str, str], None]
    on_progress: Callable[[str, str], None]
    on_done: Callable[[str, str], None]
    on_provision: Callable[[ProvisionEvent], None]
    on_slice: Callable[[Slice], None] = lambda slice_: None


@dataclass(frozen=True)
class UpReport:
    """The result of `up`: the slice, and a report of each stage."""

    slice: Slice
    created: bool
    opening: Opening | None  #: of the firewall rule, if one was requested
    guard: GuardReport | None  #: of the guard that ends the slice, if an end is set
    provision: ProvisionReport
    smoke: SmokeReport
    refusals: Sequence[Refusal] = ()  #: of the places without capacity

    @property
    def idle_stages(self) -> tuple[str, ...]:
        """The stages that found their work done, so that their times say nothing."""
        done = {"create": not self.created, "provision": not self.provision.changes}
        return tuple(stage for stage, nothing in done.items() if nothing)

    @property
    def changes(self) -> int:
        opened = bool(self.opening and self.opening.changed)
        return int(self.created) + int(opened) + self.provision.changes

    @property
    def exposing(self) -> tuple[FirewallRule, ...]:
        """The rules that let the whole world reach port 22 of the slice."""
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
            **refusals.documents(self.refusals, self.slice),
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
    load: Load = QUICK,
) -> UpReport:
    """Make sure that a slice exists, can be reached, is provisioned, and computes.

    `search` says where to look for capacity. If `firewall` is False, it creates no rule. `endpoint`
    is the TPU API for the guard, which deletes the slice at its end, if an end is set. `load` is
    the work of the smoke test.

    Raises:
        SliceLost: the slice was preempted or deleted during a stage.
        ProvisionFailed, SmokeFailed: `details` has the reports of all workers.
        TpukitError: a stage failed; the slice remains, and the error says so.
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
    slice_, opening = ensured.slice, ensured.opening
    progress.on_slice(slice_)
    deadline = deadline.within(search.seconds)
    context = context.within(deadline, patient=True)
    seen = last_seen(context.provider, slice_)
    with (
        naming_what_exists(seen),
        _raising_loss(context, slice_, opening),
    ):
        done("create", "created" if ensured.created else "already there")
        if opening:
            slice_, opening = rule_opening.finish(context, slice_, opening)
        done("firewall", opening.summary if opening else "no rule requested")
        workers = _connected(context, slice_, deadline, progress)
        done("connect", f"{len(workers)} of {len(slice_.workers)} workers, host keys verified")
        guard = _guarded(workers[0], slice_, endpoint, deadline, progress)
        seen.begun = GOES_ON
        report = provision_all(
            workers,
            Wanted((), (recipe,)),
            requirements=requirements,
            deadline=deadline,
            on_event=progress.on_provision,
        )
        seen.begun = ""
        require_provisioned(report)
        done("provision", counted(report.changes, "change"))
        progress.on_progress("smoke", f"computing on {counted(len(workers), 'worker')}")
        result = ensure_computes(
            workers,
            AcceleratorType.parse(slice_.accelerator_type),
            recipe,
            deadline=deadline,
            on_wait=lambda line: say("smoke", line),
            load=load,
        )
        done("smoke", "passed")
    return UpReport(slice_, ensured.created, opening, guard, report, result, ensured.refusals)


def _guarded(
    worker: RemoteWorker, slice_: Slice, endpoint: str, deadline: Deadline, progress: Progress
) -> GuardReport | None:
    """Install the guard if an end is set; report a failure without ending the job."""
    if not wants_guard(slice_):
        return None
    progress.on_progress("guard", "on worker 0")
    try:
        report = install_guard(worker, slice_, endpoint, deadline=deadline)
    except TpukitError as error:
        report = GuardReport("", None, why=error.summary())
    progress.on_done("guard", report.summary)
    return report


@contextmanager
def _raising_loss(context: Context, slice_: Slice, opening: Opening | None) -> Iterator[None]:
    """If the block fails because the slice is lost, raise `SliceLost`, which names its rule."""
    try:
        try:
            yield
        except TpukitError:
            check_still_there(context.provider, slice_)
            raise
    except SliceLost as lost:
        if opening and _stands(context, slice_, opening):
            opening.note_left(lost)
        raise


def _stands(context: Context, slice_: Slice, opening: Opening) -> bool:
    """Return False if the slice's rule is gone: deleting a slice with tpukit removes its rule."""
    try:
        rules = context.firewall.of(slice_.network_project).once().list()
    except TpukitError:
        return True
    return opening.rule.name in {rule.name for rule in rules}


def _connected(
    context: Context, slice_: Slice, deadline: Deadline, progress: Progress
) -> Sequence[RemoteWorker]:
    """Return the workers after all of them have answered over authenticated SSH."""
    limit, answered = deadline.within(CONNECT_SECONDS), count(1)
    progress.on_progress("connect", f"0/{len(slice_.workers)} workers")
    workers = slice_workers.workers(
        context,
        [slice_],
        "all",
        limit,
        limit.remaining(),
        on_wait=lambda line: progress.on_stage("connect", line),
        until=deadline,
    )

    def connect(worker: RemoteWorker) -> None:
        worker.connect().close()
        progress.on_progress("connect", f"{next(answered)}/{len(workers)} workers")

    values(fan_out(workers, connect))
    return workers
