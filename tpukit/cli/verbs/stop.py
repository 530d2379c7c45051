"""`tpukit stop`: stop a slice and wait until it is STOPPED."""

from __future__ import annotations

from tpukit.cli import confirmation
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.delete import end_watches
from tpukit.cli.verbs.start import on_all
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.models import Slice
from tpukit.slices import change
from tpukit.ssh.fan_out import Outcome, values


def stop(
    toolkit: Toolkit,
    name: flag.Name,
    force: confirmation.Force = False,
    timeout: flag.Timeout = "20m",
    dry_run: DryRun = False,
) -> View:
    """Stop slices and wait until they are STOPPED.

    Their disks stay. NAME may be a pattern or a label KEY=VALUE of several of your slices. Before
    it stops another owner's slice it asks, and it refuses if nobody can answer.

    Examples:
      tpukit stop demo
      tpukit stop 'exp-*'
    """
    deadline = toolkit.deadline(flag.seconds(timeout))
    slices = toolkit.slices.find_named(name, deadline)
    for slice_ in slices:
        toolkit.slices.hints.forget(slice_.name)
    confirmation.confirm(toolkit, "stop", slices, force=force, always=False)

    def act(by: Toolkit) -> list[Outcome[Slice, Slice]]:
        return on_all(by, slices, change.stop, deadline)

    if dry_run:
        return rehearse(toolkit, lambda by: values(act(by)))
    end_watches(toolkit, [(slice_.zone, slice_.name) for slice_ in slices])
    return slice_views.changed(act(toolkit))
