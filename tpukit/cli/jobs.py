"""`tpukit jobs`: the detached runs on every worker, and how each stands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from tpukit.cli import output
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.console import Console, View

if TYPE_CHECKING:
    from tpukit.detached import States
    from tpukit.remote.job_list import JobState
    from tpukit.remote.worker import RemoteWorker

RunToShow = Annotated[str, Argument(metavar="[RUN]", help="Run id; default: all of them.")]

_COLUMNS = ("RUN", "SLICE", "WORKER", "STATE", "STARTED", "COMMAND")


def jobs(
    toolkit: Toolkit,
    name: flag.Names,
    run: RunToShow = "",
    worker: flag.Workers = "all",
    timeout: flag.Timeout = "60s",
) -> View:
    """List the detached runs on every worker.

    A run is running, has exited with a status, or is lost: its process is gone without one.

    Examples:
      tpukit jobs demo
      tpukit jobs demo 20261121-143355-3f2a --json
    """
    from tpukit import detached

    workers = toolkit.workers(name, worker, flag.seconds(timeout))
    found = detached.states(workers, toolkit.clock)
    if run:
        detached.holding(found, run)
    shown = sorted(
        (
            (state, outcome.item)
            for outcome in found
            for state in outcome.value or ()
            if run in ("", state.run_id)
        ),
        key=lambda each: (each[0].started, each[0].run_id),
    )
    document = {
        "jobs": [{**output.place(place), **state.document()} for state, place in shown],
        "unreachable": [output.place(each.item) for each in found if each.error],
    }
    rows = [_row(state, place) for state, place in shown]
    return View(document, _COLUMNS, rows, status=warn_of_failures(toolkit.console, found))


def warn_of_failures(console: Console, found: States) -> int:
    """Name the workers that could not say; return the exit status that is theirs."""
    failed = [each.error for each in found if each.error]
    for error in failed:
        console.warn(error.summary())
    return max((error.exit_code for error in failed), default=0)


def _row(state: JobState, place: RemoteWorker) -> list[str]:
    told = f"exited {state.status}" if state.state == "finished" else state.state
    started = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(state.started))
    return [state.run_id, place.slice, str(place.index), told, started, state.command]
