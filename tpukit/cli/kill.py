"""`tpukit kill`: end a detached run, and whatever still holds a TPU device."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, Fix

RunToEnd = Annotated[str, Argument(metavar="[RUN]", help="Run id.")]
All = Annotated[bool, Option("--all", help="Every run, and every process that holds a TPU device.")]


def kill(
    toolkit: Toolkit,
    name: flag.Names,
    run: RunToEnd = "",
    every: All = False,
    worker: flag.Workers = "all",
    timeout: flag.Timeout = "60s",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """End a detached run on every worker.

    Whatever else holds a TPU device ends too, but for what belongs to another run. Processes get
    TERM, after 10 s KILL, and are looked for until they are gone. The lock file of libtpu is
    removed when nobody holds a device.

    Examples:
      tpukit kill demo 20261121-143355-3f2a
      tpukit kill demo --all
    """
    from tpukit.work import runs

    if bool(run) == every:
        fix = Fix.command("tpukit", "jobs", name, note="lists the runs; --all ends every one")
        raise BadInput("which run is to end?", fix=fix)
    toolkit = toolkit.by(route)
    workers = toolkit.workers(name, worker, flag.seconds(timeout))
    if run:
        workers = runs.holding(runs.states(workers, toolkit.clock), run)
    return views.ended(runs.end(workers, run or None, toolkit.clock))
