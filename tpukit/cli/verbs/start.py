"""`tpukit start`: start a slice and wait until it is READY."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpukit.cli import confirmation
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.clock import Deadline
from tpukit.console import View
from tpukit.models import Slice
from tpukit.slices import change
from tpukit.ssh.fan_out import Outcome, fan_out, values


def start(
    toolkit: Toolkit,
    name: flag.Name,
    force: confirmation.Force = False,
    timeout: flag.Timeout = "20m",
    dry_run: DryRun = False,
) -> View:
    """Start stopped slices and wait until they are READY.

    NAME may be a pattern or a label KEY=VALUE of several of your slices. Before it starts another
    owner's slice it asks, because the slice bills them. It refuses if nobody can answer.

    Examples:
      tpukit start demo
      tpukit start 'exp-*'
    """
    deadline = toolkit.deadline(flag.seconds(timeout))
    slices = toolkit.slices.find_named(name, deadline)
    confirmation.confirm(toolkit, "start", slices, force=force, always=False)

    def act(by: Toolkit) -> list[Outcome[Slice, Slice]]:
        return on_all(by, slices, change.start, deadline)

    if dry_run:
        return rehearse(toolkit, lambda by: values(act(by)))
    return slice_views.changed(act(toolkit))


def on_all(
    by: Toolkit, slices: Sequence[Slice], act: Callable[..., Slice], deadline: Deadline
) -> list[Outcome[Slice, Slice]]:
    """Start or stop slices in parallel, each with its own line of states."""
    limit = by.deadline(deadline.remaining())

    def one(slice_: Slice) -> Slice:
        say = by.display.say_state(slice_.name)
        return act(by.cloud.provider, slice_, deadline=limit, on_state=say)

    return fan_out(slices, one)
