"""`tpukit stop`: stop a slice and wait until it is STOPPED."""

from __future__ import annotations

from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.delete import end_watches
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.models import Slice
from tpukit.slices import change


def stop(
    toolkit: Toolkit,
    name: flag.Name,
    force: ownership.Force = False,
    timeout: flag.Timeout = "20m",
    dry_run: DryRun = False,
) -> View:
    """Stop a slice and wait until it is STOPPED.

    Its disks stay. Before it stops another owner's slice it asks, and it refuses if nobody can
    answer.

    Example:
      tpukit stop demo
    """
    deadline = toolkit.deadline(flag.seconds(timeout))
    slice_ = toolkit.find(name, deadline)
    toolkit.hints.forget(name)
    ownership.confirm(toolkit, "stop", [slice_], force=force, always=False)

    def act(by: Toolkit) -> Slice:
        say = by.say_state(name)
        limit = by.deadline(deadline.remaining())
        return change.stop(by.provider, slice_, deadline=limit, on_state=say)

    if dry_run:
        return rehearse(toolkit, act)
    end_watches(toolkit, [(slice_.zone, name)])
    return slice_views.one_slice(act(toolkit))
