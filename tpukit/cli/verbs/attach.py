"""`tpukit attach`: follow a detached run to its end."""

from __future__ import annotations

from dataclasses import asdict

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.logs import EVERYTHING, LEFT, LogFlags, OutputFlags, read
from tpukit.cli.views import outcome_views
from tpukit.console import View


@flag.connecting
def attach(
    toolkit: Toolkit,
    name: flag.OnlyNames = flag.LEFT_OUT,
    run: flag.RunId = "",
    flags: OutputFlags = EVERYTHING,
) -> View:
    """Follow a detached run to its end and return its exit status.

    The exit status is the highest of all workers. Ctrl-C leaves the run running.

    Examples:
      tpukit attach demo
      tpukit attach demo 20261121-143355-3f2a
    """
    outcomes, ends = read(toolkit, name, run, LogFlags(**asdict(flags), follow=True))
    if outcomes is None:
        return LEFT
    failed = {
        outcome.item: outcome.value.status
        for outcome in outcomes
        if outcome.value and outcome.value.status
    }
    told = {worker: ends.get(worker, b"").decode("utf-8", "replace") for worker in failed}
    causes, remedies = outcome_views.known_causes(told)
    exits = [f"{worker.label} exited with status {status}" for worker, status in failed.items()]
    status = max([outcome_views.worst(outcomes), *failed.values()])
    fixes = [*outcome_views.fixes(outcomes), *remedies]
    return View({}, warnings=[*exits, *causes], next=fixes, status=status)
