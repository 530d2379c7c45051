"""`tpukit logs`: what a detached run has written, on all workers at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.output import Lines
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, Fix

if TYPE_CHECKING:
    from tpukit.remote.command.fan_out import Outcome
    from tpukit.remote.connection.worker import RemoteWorker
    from tpukit.remote.job.detached_job import JobResult

    Followed = list[Outcome[RemoteWorker, JobResult | None]]

Follow = Annotated[bool, Option("--follow", "-f", help="Go on until the run has ended.")]


@dataclass(frozen=True)
class FollowFlags:
    """Whose output, in which form, and for how long a lost worker is waited for."""

    worker: flag.Workers = "all"
    json_lines: Annotated[
        bool, Option("--json-lines", help="Print each line of output as a JSON document.")
    ] = False
    timeout: flag.Timeout = "5m"  # a laptop's lid, a restart of the worker


DEFAULTS = FollowFlags()


def logs(
    toolkit: Toolkit,
    name: flag.Names,
    run: flag.RunId = "",
    follow: Follow = False,
    flags: FollowFlags = DEFAULTS,
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Print the output of a detached run, every line once.

    A lost connection is made anew, for as long as the timeout says, and the output goes on where
    it had stopped.

    Examples:
      tpukit logs demo -f
      tpukit logs demo 20261121-143355-3f2a --worker 0
    """
    return View(
        {}, status=views.worst(read(toolkit.by(route), name, run, flags, to_the_end=follow))
    )


def read(
    toolkit: Toolkit, names: str, run: str, flags: FollowFlags, *, to_the_end: bool
) -> Followed:
    """Print a run's output on all workers, and say on which it was lost or out of reach."""
    from tpukit.work import runs

    console = toolkit.console
    if console.as_json:
        raise BadInput("output is not one JSON document", fix=Fix(note="--json-lines"))
    patience = flag.seconds(flags.timeout)
    workers = toolkit.workers(names, flags.worker, patience)
    states = runs.states(workers, toolkit.clock)
    chosen = run or runs.latest(states)
    having = runs.holding(states, chosen)
    if not run:
        console.say(f"run {chosen}")
    lines = Lines(console, having, flags.json_lines)
    found = runs.follow(
        having,
        chosen,
        lambda each, line: lines.write(each, "stdout", line.encode() + b"\n"),
        toolkit.clock,
        to_the_end=to_the_end,
    )
    for each in found:
        if each.error:
            console.warn(f"{each.item.label}: {each.error.summary()}")
    return found
