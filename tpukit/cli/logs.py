"""`tpukit logs`: what a detached run has written, on all workers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from tpukit.cli import output
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput

if TYPE_CHECKING:
    from tpukit.remote.fanout import Outcome
    from tpukit.remote.jobs import JobResult
    from tpukit.remote.worker import RemoteWorker

    Followed = list[Outcome[RemoteWorker, JobResult | None]]

#: Seconds for which a worker that was lost is looked for: a laptop's lid, a restart of the worker.
PATIENCE = "5m"

Follow = Annotated[bool, Option("--follow", "-f", help="Go on until the run has ended.")]
JsonLines = Annotated[
    bool, Option("--json-lines", help="Print each line of output as a JSON document.")
]


def logs(
    toolkit: Toolkit,
    name: flag.Names,
    run: flag.RunId = "",
    follow: Follow = False,
    worker: flag.Workers = "all",
    json_lines: JsonLines = False,
    timeout: flag.Timeout = PATIENCE,
) -> View:
    """Print the output of a detached run, every line once.

    A lost connection is made anew, for as long as the timeout says, and the output goes on where
    it had stopped.

    Examples:
      tpukit logs demo -f
      tpukit logs demo 20261121-143355-3f2a --worker 0
    """
    found = read(toolkit, name, run, worker, timeout, json_lines=json_lines, to_the_end=follow)
    codes = [each.error.exit_code for each in found if each.error]
    return View({}, status=max(codes, default=0))


def read(
    toolkit: Toolkit,
    names: str,
    run: str,
    selection: str,
    timeout: str,
    *,
    json_lines: bool,
    to_the_end: bool,
) -> Followed:
    """Print a run's output on all workers, and say on which it was lost or out of reach."""
    from tpukit import detached

    console = toolkit.console
    if console.as_json:
        raise BadInput("output is not one JSON document", fix="--json-lines")
    workers = toolkit.workers(names, selection, flag.seconds(timeout))
    states = detached.states(workers, toolkit.clock)
    chosen = run or detached.latest(states)
    having = detached.holding(states, chosen)
    if not run:
        console.say(f"run {chosen}")
    tell = _teller(toolkit, having, json_lines)
    found = detached.follow(having, chosen, tell, toolkit.clock, to_the_end=to_the_end)
    for each in found:
        if each.error:
            console.warn(f"{each.item.label}: {each.error.summary()}")
    return found


def _teller(
    toolkit: Toolkit, workers: list[RemoteWorker], json_lines: bool
) -> Callable[[RemoteWorker, str], None]:
    console = toolkit.console
    several = len({each.slice for each in workers}) > 1
    emit: Any = output.as_json_lines(console) if json_lines else output.prefixed(console, several)
    lines = output.Lines(emit)
    if len(workers) == 1 and not json_lines:
        lines = output.Lines(lambda _, stream, line: console.write_prefixed(stream, "", line))
    return lambda worker, line: lines.hear(worker, "stdout", line.encode() + b"\n")
