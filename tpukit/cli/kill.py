"""`tpukit kill`: end a detached run, and whatever still holds a TPU device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import output
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput

if TYPE_CHECKING:
    from tpukit.remote.ending import EndReport
    from tpukit.remote.worker import RemoteWorker

_COLUMNS = ("SLICE", "WORKER", "ENDED", "HOLDERS ENDED", "BY KILL", "SPARED", "LOCK")

RunToEnd = Annotated[str, flag.typer.Argument(metavar="[RUN]", help="Run id.")]
All = Annotated[bool, Option("--all", help="Every run, and every process that holds a TPU device.")]


def kill(
    toolkit: Toolkit,
    name: flag.Names,
    run: RunToEnd = "",
    every: All = False,
    worker: flag.Workers = "all",
    timeout: flag.Timeout = "60s",
) -> View:
    """End a detached run on every worker.

    Whatever else holds a TPU device ends too, but for what belongs to another run. Processes get
    TERM, after 10 s KILL, and are looked for until they are gone. The lock file of libtpu is
    removed when nobody holds a device.

    Examples:
      tpukit kill demo 20261121-143355-3f2a
      tpukit kill demo --all
    """
    from tpukit import detached

    if bool(run) == every:
        raise BadInput("which run is to end?", fix=f"tpukit kill {name} RUN   (or --all)")
    workers = toolkit.workers(name, worker, flag.seconds(timeout))
    if run:
        workers = detached.holding(detached.states(workers, toolkit.clock), run)
    found = detached.end(workers, run or None, toolkit.clock)
    failed = [each for each in found if each.error]
    for each in failed:
        assert each.error
        toolkit.console.warn(each.error.summary())
    done = [(each.item, each.value) for each in found if each.value]
    document = {
        "ended": [{**output.place(place), **report.document()} for place, report in done],
        "failed": [
            {**output.place(each.item), "error": each.error.document()}
            for each in failed
            if each.error
        ],
    }
    rows = [_row(place, report) for place, report in done]
    codes = [each.error.exit_code for each in failed if each.error]
    return View(document, _COLUMNS, rows, status=max(codes, default=0))


def _row(place: RemoteWorker, report: EndReport) -> list[str]:
    counts = (report.ended, report.holders_ended, report.forced, len(report.spared))
    lock = "removed" if report.lock_removed else ""
    return [place.slice, str(place.index), *map(str, counts), lock]
