"""`tpukit stop`: stop a slice and wait until it is STOPPED."""

from __future__ import annotations

from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.delete import end_watches
from tpukit.cli.dry_run import DryRun, planned
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.models import ApiCall
from tpukit.slices import change


def stop(
    toolkit: Toolkit,
    name: flag.Name,
    force: ownership.Force = False,
    timeout: flag.Timeout = "20m",
    dry_run: DryRun = False,
) -> View:
    """Stop a slice and wait until it is STOPPED.

    Its disks stay. What belongs to another owner is asked about, or refused where nobody can
    answer.

    Example:
      tpukit stop demo
    """
    deadline, on_state = toolkit.deadline(flag.seconds(timeout)), toolkit.say_state(name)
    found = toolkit.find(name, deadline)
    toolkit.hints.forget(name)
    ownership.confirm(toolkit, "stop", [found], force=force, always=False)
    if dry_run:
        calls: list[ApiCall] = []
        change.plan_stop(toolkit.provider.planning(calls.append), found)
        return planned(calls)
    end_watches(toolkit, [name])
    result = change.stop(toolkit.provider, found, deadline=deadline, on_state=on_state)
    return slice_views.one_slice(result)
