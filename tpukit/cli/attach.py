"""`tpukit attach`: follow a detached run to its end."""

from __future__ import annotations

from dataclasses import asdict

from tpukit.cli import parameters as flag
from tpukit.cli.logs import EVERYTHING, LEFT, LogFlags, OutputFlags, read
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import outcome_views
from tpukit.console import View


def attach(
    toolkit: Toolkit,
    name: flag.Names,
    run: flag.RunId = "",
    flags: OutputFlags = EVERYTHING,
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Follow a detached run to its end and return its exit status.

    The exit status is the highest of all workers. Ctrl-C leaves the run running.

    Examples:
      tpukit attach demo
      tpukit attach demo 20261121-143355-3f2a
    """
    outcomes = read(toolkit.by(route), name, run, LogFlags(**asdict(flags), follow=True))
    if outcomes is None:
        return LEFT
    for outcome in outcomes:
        if outcome.value and outcome.value.status:
            toolkit.console.warn(f"{outcome.item.label} exited with status {outcome.value.status}")
    codes = [outcome.value.status for outcome in outcomes if outcome.value]
    return View({}, status=max([outcome_views.worst(outcomes), *codes]))
