"""`tpukit start`: start a slice and wait until it is READY."""

from __future__ import annotations

from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, planned
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.models import ApiCall
from tpukit.slices import change


def start(
    toolkit: Toolkit,
    name: flag.Name,
    force: ownership.Force = False,
    timeout: flag.Timeout = "20m",
    dry_run: DryRun = False,
) -> View:
    """Start a stopped slice and wait until it is READY.

    What belongs to another owner is asked about, or refused where nobody can answer: it bills them.

    Example:
      tpukit start demo
    """
    deadline, on_state = toolkit.deadline(flag.seconds(timeout)), toolkit.say_state(name)
    found = toolkit.find(name, deadline)
    ownership.confirm(toolkit, "start", [found], force=force, always=False)
    if dry_run:
        calls: list[ApiCall] = []
        change.plan_start(toolkit.provider.planning(calls.append), found)
        return planned(calls)
    result = change.start(toolkit.provider, found, deadline=deadline, on_state=on_state)
    return slice_views.one_slice(result)
