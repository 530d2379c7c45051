"""`tpukit update`: change labels, tags, metadata and data disks of a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

from typer import Option

from tpukit.accelerators import AcceleratorType, is_listed
from tpukit.cli import confirmation
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
    """The changes to make, named as in gcloud."""

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
        list[str] | None, Option(metavar="DISK", help="Path or name of the disk; repeatable.")
    ] = None

    @property
    def words(self) -> Sequence[str]:
        """The command-line words of the flags."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        pairs = [
            (f"--{name.replace('_', '-')}", value)
            for name, values in given
            for value in ([values] if isinstance(values, str) else values or ())
        ]
        return [word for flag, value in pairs if value for word in (flag, value)]

    def edits(self, workers: int) -> Edits:
        """Return the edits for a slice with `workers`; raise `BadInput` for invalid or no edits."""
        labels = check_labels(flag.pairs(self.update_labels, "--update-labels"))
        metadata = flag.pairs(self.update_metadata, "--update-metadata")
        edits_ = Edits(
            labels={**labels, **dict.fromkeys(flag.words(self.remove_labels))},
            tags=flag.words(self.add_tags),
            without_tags=flag.words(self.remove_tags),
            metadata={**metadata, **dict.fromkeys(flag.words(self.remove_metadata))},
            disks=tuple(data_disk(disk, workers) for disk in self.attach_disk or ()),
            without_disks=tuple(self.detach_disk or ()),
        )
        edits_.check()
        return edits_


def update(
    toolkit: Toolkit,
    name: flag.Name,
    flags: EditFlags = EditFlags(),
    force: confirmation.Force = False,
    timeout: flag.Timeout = "5m",
    dry_run: DryRun = False,
) -> View:
    """Change labels, tags, metadata and data disks of a slice.

    Everything else stays. The API accepts two updates at the same time, and one may undo the other.
    So tpukit reads the slice before and after its update, and warns of other updates in between.

    Examples:
      tpukit update demo --update-labels team=vision --remove-labels draft
      tpukit update demo --attach-disk projects/p/zones/us-central1-a/disks/data,mode=read-only
    """
    flags.edits(1)
    deadline = toolkit.deadline(flag.seconds(timeout))
    slice_ = toolkit.slices.find(name, deadline)
    edits = flags.edits(_workers(slice_))
    confirmation.confirm(toolkit, "update", [slice_], force=force, always=False, flags=flags.words)

    def act(by: Toolkit) -> Updated:
        limit, say = by.deadline(deadline.remaining()), by.display.say_state(name)
        return apply(by.cloud.provider, slice_, edits, deadline=limit, on_state=say)

    if dry_run:
        return rehearse(toolkit, act)
    done = act(toolkit)
    beside = f"{len(done.beside)} other updates ran at the same time: check that none was lost"
    return slice_views.updated(done, [beside] if done.beside else [])


def _workers(slice_: Slice) -> int:
    kind = slice_.accelerator_type
    return len(slice_.workers) or (AcceleratorType.parse(kind).workers if is_listed(kind) else 1)
