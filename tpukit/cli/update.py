"""`tpukit update`: labels, tags, metadata and data disks of a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

from typer import Option

from tpukit.accelerators import AcceleratorType, is_listed
from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.request import check_labels, data_disk
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.models import Slice
from tpukit.slices.update import Edits, Updated
from tpukit.slices.update import update as apply


@dataclass(frozen=True)
class EditFlags:
    """What is to be there and what is not; gcloud's words."""

    update_labels: Annotated[
        str, Option(metavar="KEY=VALUE,…", help="Labels to add or to change.")
    ] = ""
    remove_labels: Annotated[str, Option(metavar="KEY,…", help="Labels to remove.")] = ""
    add_tags: Annotated[str, Option(metavar="TAG,…", help="Network tags to add.")] = ""
    remove_tags: Annotated[str, Option(metavar="TAG,…", help="Network tags to remove.")] = ""
    update_metadata: Annotated[
        str, Option(metavar="KEY=VALUE,…", help="Metadata to add or to change.")
    ] = ""
    remove_metadata: Annotated[str, Option(metavar="KEY,…", help="Metadata to remove.")] = ""
    attach_disk: Annotated[
        list[str] | None,
        Option(metavar="DISK", help="projects/…/zones/…/disks/…[,mode=read-only]; repeatable."),
    ] = None
    detach_disk: Annotated[
        list[str] | None, Option(metavar="DISK", help="Its path, or its name; repeatable.")
    ] = None

    @property
    def words(self) -> Sequence[str]:
        """The flags as they were typed."""
        given = [(each.name, getattr(self, each.name)) for each in fields(self)]
        pairs = [
            (f"--{name.replace('_', '-')}", value)
            for name, values in given
            for value in ([values] if isinstance(values, str) else values or ())
        ]
        return [word for flag, value in pairs if value for word in (flag, value)]

    def edits(self, workers: int) -> Edits:
        """Return the edits for a slice of so many workers; raise `BadInput` for what is none."""
        labels = check_labels(flag.pairs(self.update_labels, "--update-labels"))
        metadata = flag.pairs(self.update_metadata, "--update-metadata")
        found = Edits(
            labels={**labels, **dict.fromkeys(flag.words(self.remove_labels))},
            tags=flag.words(self.add_tags),
            without_tags=flag.words(self.remove_tags),
            metadata={**metadata, **dict.fromkeys(flag.words(self.remove_metadata))},
            disks=tuple(data_disk(each, workers) for each in self.attach_disk or ()),
            without_disks=tuple(self.detach_disk or ()),
        )
        found.check()
        return found


NONE = EditFlags()


def update(
    toolkit: Toolkit,
    name: flag.Name,
    flags: EditFlags = NONE,
    force: ownership.Force = False,
    timeout: flag.Timeout = "5m",
    dry_run: DryRun = False,
) -> View:
    """Change labels, tags, metadata and data disks of a slice.

    What is not named stays. The slice is read right before it is written and again after it, and
    another's update that ran at the same time is told: the API has nothing against two of them.

    Examples:
      tpukit update demo --update-labels team=vision --remove-labels draft
      tpukit update demo --attach-disk projects/p/zones/us-central1-a/disks/data,mode=read-only
    """
    flags.edits(1)
    deadline = toolkit.deadline(flag.seconds(timeout))
    found = toolkit.find(name, deadline)
    edits = flags.edits(_workers(found))
    ownership.confirm(toolkit, "update", [found], force=force, always=False, flags=flags.words)

    def act(by: Toolkit) -> Updated:
        limit, say = by.deadline(deadline.remaining()), by.say_state(name)
        return apply(by.provider, found, edits, deadline=limit, on_state=say)

    if dry_run:
        return rehearse(toolkit, act)
    done = act(toolkit)
    beside = f"{len(done.beside)} other updates ran at the same time: look whether theirs is there"
    return slice_views.updated(done, [beside] if done.beside else [])


def _workers(found: Slice) -> int:
    kind = found.accelerator_type
    return len(found.workers) or (AcceleratorType.parse(kind).workers if is_listed(kind) else 1)
