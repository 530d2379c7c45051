"""`tpukit stop`: stop a slice and wait until it is STOPPED."""

from __future__ import annotations

from tpukit.cli import confirmation
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.delete import end_watches
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.models import Slice
from tpukit.slices import change
from tpukit.ssh.fan_out import Outcome, fan_out, values


def stop(
    toolkit: Toolkit,
    name: flag.Name,
    force: confirmation.Force = False,
    timeout: flag.Timeout = "20m",
    dry_run: DryRun = False,
) -> View:
    """Stop slices and wait until they are STOPPED.

    Their disks stay. NAME may be a pattern that matches several of your slices. Before it stops
    another owner's slice it asks, and it refuses if nobody can answer.

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
        def one(slice_: Slice) -> Slice:
            say = by.display.say_state(slice_.name)
            return change.stop(by.cloud.provider, slice_, deadline=limit, on_state=say)

        limit = by.deadline(deadline.remaining())
        return fan_out(slices, one)

    if dry_run:
        return rehearse(toolkit, lambda by: values(act(by)))
    end_watches(toolkit, [(slice_.zone, slice_.name) for slice_ in slices])
    return slice_views.changed(act(toolkit))
