"""`tpukit reap`: delete dead and expired slices and queued resources, in all zones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TypeVar

from typer import Option

from tpukit.accelerators import region_of
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import Console, View
from tpukit.errors import Fix, QuotaExceeded, TpukitError
from tpukit.models import Slice, UnusedDisk

if TYPE_CHECKING:
    from tpukit.cli.toolkit.known_slices import KnownSlices
    from tpukit.slices.survey import Leftover, Survey

Made = TypeVar("Made")

_REAP_SECONDS = 1200.0
Force = Annotated[bool, Option("--force", help="Also delete those that tpukit made for others.")]
Foreign = Annotated[bool, Option("--foreign", help="Also delete those that tpukit did not make.")]


def reap(
    toolkit: Toolkit,
    force: Force = False,
    foreign: Foreign = False,
    dry_run: DryRun = False,
    timeout: flag.Timeout = "20m",
) -> View:
    """Delete dead and expired slices and queued resources, in all zones.

    A slice is dead if it is PREEMPTED or TERMINATED, or on Compute Engine if nobody completes its
    create for an hour; a queued resource is dead if it is FAILED or SUSPENDED. tpukit shows them
    all and asks once. If a zone does not answer, tpukit names it and exits with 1. It also lists
    firewall rules without a slice, and unused data disks of slices that this machine made or
    deleted. A dead slice stays if a watch on this machine makes it again.

    Examples:
      tpukit reap --dry-run
      tpukit reap --yes
    """
    from tpukit.access.cleanup import not_deleted
    from tpukit.slices.survey import survey

    limit = flag.seconds(timeout)
    provider = toolkit.cloud.provider.within(toolkit.deadline(limit))
    zone = toolkit.flags.zone or "-"
    owner = toolkit.cloud.owner
    try:
        seen = survey(provider, owner, zone=zone, others=force, foreign=foreign)
    except TpukitError as error:
        error.exists = (
            "unknown, because the slices could not be listed; those that exist bill on",
        )
        shows = Fix.command("tpukit", "list", "--zone", zone, note="shows the slices")
        error.fix, error.otherwise = error.fix or shows, shows if error.fix else None
        raise
    seen = _spare_watched(toolkit, seen)
    all_seen = seen.whole and zone == "-"
    disks = _disks_left(toolkit, seen.slices, limit) if all_seen else []
    _tell(toolkit.console, seen)
    if dry_run:
        shown = rehearse(toolkit, lambda by: by.slices.cleanup.reap(seen.due, by.deadline(limit)))
        return _view(seen, (), _rules_left(toolkit.slices, all_seen), disks, shown=shown)
    if seen.due:
        _ask(toolkit, seen.due)
    done = toolkit.slices.cleanup.reap(seen.due, toolkit.deadline(limit))
    deleted = [leftover for leftover in seen.due if leftover.label in done.names]
    changed = [leftover for leftover in seen.due if leftover.label in done.spared]
    rules = dict.fromkeys([*_rules_left(toolkit.slices, all_seen), *done.rules])
    shown = _view(seen, deleted, [*rules], disks, changed=changed)
    if done.failed:
        for fix in shown.next:
            toolkit.console.suggest(fix)
        fix = Fix.command("tpukit", "reap")
        raise not_deleted(done.failed, done.names, things="things", fix=fix)
    return shown


def with_room(
    toolkit: Toolkit, zones: Collection[str], act: Callable[[], Made], *, reap_own: bool
) -> Made:
    """Return the result of `act`; if a quota is used up, delete your dead things and act again.

    Dead slices and requests in the regions of the zones use quota until they are deleted; an
    expired slice that lives is none. Only `reap_own` deletes them without a question: `--yes` was
    given for another one. If nobody can answer, the error names them.
    """
    from tpukit.slices.survey import survey

    try:
        return act()
    except QuotaExceeded as error:
        seen = _spare_watched(toolkit, survey(toolkit.cloud.provider, toolkit.cloud.owner))
        regions = {region_of(zone) for zone in zones}
        due = [
            leftover
            for leftover in seen.due
            if region_of(leftover.zone) in regions and leftover.dead
        ]
        if not due or error.retry != "after-fix":  # else a rate limit, which deletes nothing
            raise
        lines = [f"{leftover.label}: {leftover.why}; it uses quota" for leftover in due]
        error.exists += tuple(lines)
        error.fix = Fix.command("tpukit", "reap")
        if not (reap_own or toolkit.questions.possible):
            raise
        toolkit.console.say(error.summary())
    for line in lines:
        toolkit.console.say(line)
    if not reap_own:
        _ask(toolkit, due)
    toolkit.slices.cleanup.reap(due, toolkit.deadline(_REAP_SECONDS)).check()
    return act()


def _ask(toolkit: Toolkit, due: Sequence[Leftover]) -> None:
    several = len(due) > 1
    toolkit.questions.confirm(f"delete these {len(due)}?" if several else "delete it?")


def _rules_left(slices: KnownSlices, all_seen: bool) -> list[str]:
    """Return the rules without a slice; none unless every zone was read."""
    return [rule.name for _, rule in slices.cleanup.left_over()] if all_seen else []


def _spare_watched(toolkit: Toolkit, seen: Survey) -> Survey:
    if not toolkit.paths.watches.is_dir():
        return seen
    from tpukit.cli import attendance
    from tpukit.watch import background

    return background.spare_watched(attendance.files(toolkit), seen)


def _tell(console: Console, seen: Survey) -> None:
    for leftover in seen.due:
        console.say(f"{leftover.label}: {leftover.why}")
    for leftover in seen.spared:
        console.say(f"stays: {leftover.label}: {leftover.why}, but {leftover.spared}")
    if not seen.due:
        console.say("nothing to delete")


def _disks_left(toolkit: Toolkit, slices: Sequence[Slice], limit: float) -> list[UnusedDisk]:
    """Return the unused data disks of former slices; warn and return none if reading fails."""
    from tpukit.slices import data_disks

    had = toolkit.cloud.journal.disks(toolkit.settings.get("project"))
    disks = toolkit.cloud.disks.within(toolkit.deadline(limit))
    try:
        return data_disks.left_over(disks, had, slices)
    except TpukitError as error:
        toolkit.console.warn(f"data disks were not checked: {error.summary()}")
        return []


def _view(
    seen: Survey,
    deleted: Sequence[Leftover],
    rules: Sequence[str],
    disks: Sequence[UnusedDisk],
    *,
    changed: Sequence[Leftover] = (),
    shown: View | None = None,
) -> View:
    """Show the deleted slices and queued resources, or a dry run's calls, and all leftovers."""
    shown = shown or View(
        {},
        rows=[[leftover.kind, leftover.name, leftover.zone, leftover.why] for leftover in deleted],
    )
    document = {
        "deleted": [leftover.document() for leftover in deleted],
        "due": [leftover.document() for leftover in seen.due],
        "spared": [leftover.document() for leftover in (*seen.spared, *changed)],
        "unreachable": list(seen.unreachable),
        "unseen": list(seen.unseen),
        "rules_left_over": list(rules),
        "disks_left_over": [disk.document() for disk in disks],
        **shown.document,
    }
    silent = [f"{zone} did not answer: its slices were not checked" for zone in seen.unreachable]
    silent += slice_views.unread(seen.slices)
    silent += [f"queued resources were not checked: {why}" for why in seen.unseen]
    silent += [
        f"{leftover.label} is gone or has changed: it was not deleted" for leftover in changed
    ]
    silent += [f"the slice of rule {name} is gone" for name in rules]
    silent += [
        f"data disk {disk.name} ({disk.zone}, {disk.size_gb} GB) of former slice {disk.slice} "
        "is unused: it stays until you delete it"
        for disk in disks
    ]
    remove = [Fix.command("tpukit", "firewall", "remove", name) for name in rules]
    remove += [_delete_disk(disk) for disk in disks]
    return replace(
        shown, document=document, warnings=silent, next=remove, status=int(not seen.whole)
    )


def _delete_disk(disk: UnusedDisk) -> Fix:
    _, project, kind, place, _, name = disk.source.split("/")
    where = (f"--{kind.removesuffix('s')}", place, "--project", project)
    return Fix.command("gcloud", "compute", "disks", "delete", name, *where)
