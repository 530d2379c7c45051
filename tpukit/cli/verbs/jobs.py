"""`tpukit jobs`: list the runs on a slice and their states, or remove the files of ended runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import job_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, TpukitError

RunToShow = Annotated[str, Argument(metavar="[RUN]", help="Run id; default: all of them.")]
SomeNames = Annotated[
    str, Argument(metavar="[NAME[,NAME…]]", help="Name of the slice, or of several; default: all.")
]


@dataclass(frozen=True)
class JobFlags:
    """The flags of `tpukit jobs`."""

    environment: Annotated[
        bool, Option("--environment", help="Show the run's command and variables, secrets masked.")
    ] = False
    prune: Annotated[
        bool, Option("--prune", help="Remove the logs of runs that have ended or were lost.")
    ] = False
    older_than: Annotated[
        str,
        Option(metavar="DURATION", help="With --prune: only runs that ended at least so long ago."),
    ] = ""


@flag.connecting
def jobs(
    toolkit: Toolkit,
    name: SomeNames = "",
    run: RunToShow = "",
    flags: JobFlags = JobFlags(),
    worker: flag.Workers = "all",
    timeout: flag.Timeout = "60s",
) -> View:
    """List the runs on every worker; without NAME, on all of your READY slices.

    A detached run is running, has exited with a status, or is lost: its process ended without a
    status. An attached run is listed while any of its processes runs, even without its client.
    --prune removes the files of ended runs, never of running ones, and reports their size. If some
    of several slices are lost or stopped, the runs on the others are shown all the same.

    Examples:
      tpukit jobs
      tpukit jobs demo
      tpukit jobs demo 20261121-143355-3f2a --environment
      tpukit jobs demo --prune --older-than 48h
    """
    from tpukit.jobs import runs

    if flags.older_than and not flags.prune:
        raise BadInput("--older-than needs --prune", fix=Fix(note="add --prune"))
    if flags.environment and (flags.prune or not run):
        raise BadInput("--environment shows one run", fix=Fix.command("tpukit", "jobs", name))
    if flags.prune and not name:
        raise BadInput("--prune needs a NAME", fix=Fix.command("tpukit", "jobs"))
    older_than = flag.seconds(flags.older_than, "--older-than") if flags.older_than else 0.0
    before = older_than if flags.prune else None
    patience = flag.seconds(timeout)
    if not name:
        name = _ready(toolkit, patience)
    if not name:
        toolkit.console.say("you have no READY slices")
        return job_views.beside_failed(job_views.jobs([], run, toolkit.clock.time()), {})
    failed: dict[str, TpukitError] = {}
    workers = toolkit.reach.workers(name, worker, patience, on_failure=failed.__setitem__)
    states = runs.states(workers, toolkit.clock, run, ended_before=before, patience=patience)
    if run:
        runs.holding(states, run)
    if flags.prune:
        view = job_views.pruned(states)
    elif flags.environment:
        view = job_views.environments(states)
    else:
        view = job_views.jobs(states, run, toolkit.clock.time())
    return job_views.beside_failed(view, failed)


def _ready(toolkit: Toolkit, patience: float) -> str:
    """Return the names of the user's READY slices."""
    mine = toolkit.slices.matching(["*"], deadline=toolkit.deadline(patience))
    return ",".join(slice_.name for slice_ in mine if slice_.ready)
