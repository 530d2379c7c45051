"""`tpukit start`: start a slice and wait until it is READY."""

from __future__ import annotations

from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.models import Slice
from tpukit.slices import change


def start(
    toolkit: Toolkit,
    name: flag.Name,
    force: ownership.Force = False,
    timeout: flag.Timeout = "20m",
    dry_run: DryRun = False,
) -> View:
    """Start a stopped slice and wait until it is READY.

    Before it starts another owner's slice it asks, because the slice bills them. It refuses if
    nobody can answer.

    Example:
      tpukit start demo
    """
    deadline = toolkit.deadline(flag.seconds(timeout))
    slice_ = toolkit.find(name, deadline)
    ownership.confirm(toolkit, "start", [slice_], force=force, always=False)

    def act(by: Toolkit) -> Slice:
        say = by.say_state(name)
        limit = by.deadline(deadline.remaining())
        return change.start(by.provider, slice_, deadline=limit, on_state=say)

    if dry_run:
        return rehearse(toolkit, act)
    return slice_views.one_slice(act(toolkit))
