"""`tpukit kill`: end a run, or all processes that hold a TPU device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import job_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix

RunToEnd = Annotated[str, Argument(metavar="[RUN]", help="Run id.")]


@dataclass(frozen=True)
class KillFlags:
    """The processes to end, and the signals that end them."""

    all: Annotated[bool, Option("--all", help="End every run, attached or detached.")] = False
    all_holders: Annotated[
        bool, Option("--all-holders", help="End every process that holds a TPU device.")
    ] = False
    signal: Annotated[str, Option(metavar="NAME", help="First signal; INT acts like Ctrl-C.")] = (
        "TERM"
    )
    grace: Annotated[
        str, Option(metavar="DURATION", help="Time between the first signal and KILL.")
    ] = "10s"


@flag.connecting
def kill(
    toolkit: Toolkit,
    name: flag.Names,
    how: KillFlags,
    run: RunToEnd = "",
    worker: flag.Workers = "all",
    timeout: flag.Timeout = "60s",
) -> View:
    """End a run on every worker, detached or attached.

    It ends only processes that the run has started, including those under sudo, and warns of other
    processes that hold a TPU device. Processes get TERM, then KILL; tpukit waits until they have
    ended. It removes libtpu's lock file if no process holds a device.

    Examples:
      tpukit kill demo 20261121-143355-3f2a
      tpukit kill demo 20261121-143355-3f2a --signal INT --grace 2m
      tpukit kill demo --all --all-holders
    """
    from tpukit.jobs import runs
    from tpukit.jobs.end import signal_name

    if bool(run) == how.all and (run or not how.all_holders):
        fix = Fix.command("tpukit", "jobs", note="lists the runs with their slices")
        raise BadInput("name one run to end, or give --all", fix=fix)
    first, grace = signal_name(how.signal), flag.seconds(how.grace, "--grace")
    patience = flag.seconds(timeout)
    workers = toolkit.reach.workers(name, worker, patience)
    ended = runs.end(
        workers,
        "all" if how.all else [run] if run else [],
        toolkit.clock,
        holders="ended" if how.all_holders else "told",
        first=first,
        grace=grace,
        patience=patience,
    )
    return job_views.ended(name, ended)
