"""`tpukit jobs`: the runs on a slice, and how each stands; and the end of their files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import job_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix

RunToShow = Annotated[str, Argument(metavar="[RUN]", help="Run id; default: all of them.")]


@dataclass(frozen=True)
class JobFlags:
    """What to do with the runs but list them."""

    environment: Annotated[
        bool, Option("--environment", help="Show the run's command and variables, secrets masked.")
    ] = False
    prune: Annotated[
        bool, Option("--prune", help="Remove the logs of runs that have ended or were lost.")
    ] = False
    older_than: Annotated[
        str, Option(metavar="DURATION", help="With --prune: only what ended so long ago.")
    ] = ""


LISTING = JobFlags()


def jobs(
    toolkit: Toolkit,
    name: flag.Names,
    run: RunToShow = "",
    flags: JobFlags = LISTING,
    worker: flag.Workers = "all",
    timeout: flag.Timeout = "60s",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """List the runs on every worker.

    A detached run is running, has exited with a status, or is lost: its process is gone without
    one. An attached run is listed while anything of it runs, also if its client is gone. --prune
    removes what is left of those that ended, never of one that runs, and says how much.

    Examples:
      tpukit jobs demo
      tpukit jobs demo 20261121-143355-3f2a --environment
      tpukit jobs demo --prune --older-than 48h
    """
    from tpukit.work import runs

    if flags.older_than and not flags.prune:
        raise BadInput("--older-than belongs to --prune", fix=Fix(note="add --prune"))
    if flags.environment and (flags.prune or not run):
        raise BadInput("--environment shows one run", fix=Fix.command("tpukit", "jobs", name))
    older_than = flag.seconds(flags.older_than, "--older-than") if flags.older_than else 0.0
    before = older_than if flags.prune else None
    toolkit = toolkit.by(route)
    patience = flag.seconds(timeout)
    workers = toolkit.workers(name, worker, patience)
    found = runs.states(workers, toolkit.clock, run, ended_before=before, patience=patience)
    if run:
        runs.holding(found, run)
    if flags.prune:
        return job_views.pruned(found)
    if flags.environment:
        return job_views.environments(found)
    return job_views.jobs(found, run, toolkit.clock.time())
