"""`tpukit jobs`: the detached runs on every worker, and how each stands."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View

RunToShow = Annotated[str, Argument(metavar="[RUN]", help="Run id; default: all of them.")]


def jobs(
    toolkit: Toolkit,
    name: flag.Names,
    run: RunToShow = "",
    worker: flag.Workers = "all",
    timeout: flag.Timeout = "60s",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """List the detached runs on every worker.

    A run is running, has exited with a status, or is lost: its process is gone without one.

    Examples:
      tpukit jobs demo
      tpukit jobs demo 20261121-143355-3f2a --json
    """
    from tpukit.work import runs

    toolkit = toolkit.by(route)
    workers = toolkit.workers(name, worker, flag.seconds(timeout))
    found = runs.states(workers, toolkit.clock)
    if run:
        runs.holding(found, run)
    return views.jobs(found, run)
