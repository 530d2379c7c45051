"""`tpukit reap`: delete what has expired or is dead, in all zones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.errors import Fix, TpukitError
from tpukit.models import Slice, UnusedDisk

if TYPE_CHECKING:
    from tpukit.slices.survey import Leftover, Survey

Force = Annotated[bool, Option("--force", help="Also what tpukit made for others.")]
Foreign = Annotated[bool, Option("--foreign", help="Also what tpukit did not make.")]


def reap(
    toolkit: Toolkit,
    force: Force = False,
    foreign: Foreign = False,
    dry_run: DryRun = False,
    timeout: flag.Timeout = "20m",
) -> View:
    """Delete what is dead or whose time is up, in all zones.

    Dead are slices that are PREEMPTED or TERMINATED, and queued resources that are FAILED or
    SUSPENDED. It is all shown first, and asked about once. Zones that did not answer are named, and
    the status is 1 then. Firewall rules whose slice is gone are listed, and data disks that slices
    made or deleted from here had. What is dead stays if a watch on this machine makes it again.

    Examples:
      tpukit reap --dry-run
      tpukit reap --yes
    """
    from tpukit.access.cleanup import not_deleted
    from tpukit.slices.survey import survey

    limit = flag.seconds(timeout)
    provider = toolkit.provider.within(toolkit.deadline(limit))
    zone = toolkit.flags.zone or "-"
    found = survey(provider, toolkit.owner, zone=zone, others=force, foreign=foreign)
    found = _spare_watched(toolkit, found)
    all_seen = found.whole and zone == "-"
    disks = _disks_left(toolkit, found.slices, limit) if all_seen else []
    _tell(toolkit, found)
    if dry_run:
        shown = rehearse(toolkit, lambda by: by.cleanup.reap(found.due, by.deadline(limit)))
        return _view(found, (), _rules_left(toolkit, all_seen), disks, shown=shown)
    if found.due:
        toolkit.confirm(f"delete these {len(found.due)}?" if len(found.due) > 1 else "delete it?")
    done = toolkit.cleanup.reap(found.due, toolkit.deadline(limit))
    deleted = [each for each in found.due if each.label in done.names]
    changed = [each for each in found.due if each.label in done.spared]
    rules = dict.fromkeys([*_rules_left(toolkit, all_seen), *done.rules])
    shown = _view(found, deleted, [*rules], disks, changed=changed)
    if done.failed:
        for fix in shown.next:
            toolkit.console.suggest(fix)
        fix = Fix.command("tpukit", "reap")
        raise not_deleted(done.failed, done.names, things="things", fix=fix)
    return shown


def _rules_left(toolkit: Toolkit, all_seen: bool) -> list[str]:
    """Return the rules whose slice is gone by now, if every slice was seen."""
    return [rule.name for _, rule in toolkit.cleanup.left_over()] if all_seen else []


def _spare_watched(toolkit: Toolkit, found: Survey) -> Survey:
    """Return the survey with what a watch on this machine makes again among the spared."""
    if not toolkit.paths.watches.is_dir():
        return found
    from tpukit.cli import watching
    from tpukit.models import DEAD_STATES, LOST_STATES
    from tpukit.slices.survey import QUEUED, SLICE

    running = [each for file, each in watching.files(toolkit).all() if file.process() is not None]
    slices = {(SLICE, each.zone, each.name) for each in running}
    slices |= {(QUEUED, each.zone, each.spec.queued_resource) for each in running}
    due = [each for each in found.due if (each.kind, each.zone, each.name) in slices]
    dead = [each for each in due if each.state in LOST_STATES | DEAD_STATES]
    spared = [replace(each, spared="its watch makes it again") for each in dead]
    left = tuple(each for each in found.due if each not in dead)
    return replace(found, due=left, spared=(*found.spared, *spared))


def _tell(toolkit: Toolkit, found: Survey) -> None:
    for each in found.due:
        toolkit.console.say(f"{each.label}: {each.why}")
    for each in found.spared:
        toolkit.console.say(f"stays: {each.label}: {each.why}, but {each.spared}")
    if not found.due:
        toolkit.console.say("nothing to delete")


def _disks_left(toolkit: Toolkit, slices: Sequence[Slice], limit: float) -> list[UnusedDisk]:
    """Return the data disks that slices had and that nothing uses, where they may be read."""
    from tpukit.slices import data_disks

    had = toolkit.journal.disks(toolkit.settings.get("project"))
    disks = toolkit.disks.within(toolkit.deadline(limit))
    try:
        return data_disks.left_over(disks, had, slices)
    except TpukitError as error:
        toolkit.console.warn(f"data disks were not looked at: {error.summary()}")
        return []


def _view(
    found: Survey,
    deleted: Sequence[Leftover],
    rules: Sequence[str],
    disks: Sequence[UnusedDisk],
    *,
    changed: Sequence[Leftover] = (),
    shown: View | None = None,
) -> View:
    """Show what was left over and is gone, or the calls that would delete it, and what is not."""
    shown = shown or View(
        {}, rows=[[each.kind, each.name, each.zone, each.why] for each in deleted]
    )
    document = {
        "deleted": [each.document() for each in deleted],
        "due": [each.document() for each in found.due],
        "spared": [each.document() for each in (*found.spared, *changed)],
        "unreachable": list(found.unreachable),
        "unseen": list(found.unseen),
        "rules_left_over": list(rules),
        "disks_left_over": [each.document() for each in disks],
        **shown.document,
    }
    silent = [
        f"{each} did not answer: what is left there was not seen" for each in found.unreachable
    ]
    silent += slice_views.unread(found.slices)
    silent += [f"queued resources were not seen: {why}" for why in found.unseen]
    silent += [f"{each.label} is gone, or not what it was: it was left alone" for each in changed]
    silent += [f"the slice of rule {name} is gone" for name in rules]
    silent += [
        f"nothing uses data disk {each.name} ({each.zone}, {each.size_gb} GB), which slice "
        f"{each.slice} had: it stays until it is deleted"
        for each in disks
    ]
    remove = [Fix.command("tpukit", "firewall", "remove", name) for name in rules]
    remove += [_delete_disk(each) for each in disks]
    return replace(
        shown, document=document, warnings=silent, next=remove, status=int(not found.whole)
    )


def _delete_disk(disk: UnusedDisk) -> Fix:
    _, project, kind, place, _, name = disk.source.split("/")
    where = (f"--{kind.removesuffix('s')}", place, "--project", project)
    return Fix.command("gcloud", "compute", "disks", "delete", name, *where)
