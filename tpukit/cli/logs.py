"""`tpukit logs`: what a detached run has written, on all workers at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.output import Stamped, chosen_output
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import outcome_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, Interrupted, interruption
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.command.fan_out import Outcome
    from tpukit.remote.connection.worker import RemoteWorker
    from tpukit.remote.job.detached_job import JobResult

    Followed = list[Outcome[RemoteWorker, JobResult | None]]


@dataclass(frozen=True)
class OutputFlags:
    """Whose output, in which form, and for how long a lost worker is waited for."""

    worker: flag.Workers = "all"
    timestamps: Annotated[
        bool,
        Option("--timestamps", help="Begin each line with when it was written, to the second."),
    ] = False
    output_directory: Annotated[
        str, Option(metavar="DIRECTORY", help="Collect each worker's log in a file instead.")
    ] = ""
    json_lines: Annotated[
        bool, Option("--json-lines", help="Print each line of output as a JSON document.")
    ] = False
    timeout: flag.Timeout = "5m"  # a laptop's lid, a restart of the worker


@dataclass(frozen=True)
class LogFlags(OutputFlags):
    """Which part of a log."""

    follow: Annotated[bool, Option("--follow", "-f", help="Go on until the run has ended.")] = False
    tail: Annotated[
        int | None, Option(metavar="N", help="Only the last N lines of each worker.", min=0)
    ] = None
    since: Annotated[
        str, Option(metavar="DURATION|TIME", help="Only what is not older: 10m, 2026-11-22T14:30.")
    ] = ""


EVERYTHING, WHOLE = OutputFlags(), LogFlags()
#: What a verb shows that Ctrl-C ended while the run goes on.
LEFT = View({}, status=Interrupted.exit_code)


def logs(
    toolkit: Toolkit,
    name: flag.Names,
    run: flag.RunId = "",
    flags: LogFlags = WHOLE,
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Print the output of a detached run, every line once.

    A lost connection is made anew, for as long as the timeout says, and the output goes on where
    it had stopped. One worker's output is passed on as it is, like that of `tpukit run`.

    Examples:
      tpukit logs demo -f --tail 20
      tpukit logs demo --since 10m --timestamps
      tpukit logs demo 20261121-143355-3f2a --worker 0 > log.txt
    """
    found = read(toolkit.by(route), name, run, flags)
    return LEFT if found is None else View({}, status=outcome_views.worst(found))


def read(toolkit: Toolkit, names: str, run: str, flags: LogFlags) -> Followed | None:
    """Print a run's output on all workers, and say on which it was lost or out of reach.

    Returns None if Ctrl-C ended it while the run goes on: that is how one leaves a run.
    """
    from tpukit.remote.job.detached_job import LogPart
    from tpukit.work import runs

    console = toolkit.console
    if console.as_json:
        raise BadInput("output is not one JSON document", fix=Fix(note="--json-lines"))
    patience = flag.seconds(flags.timeout)
    part = LogPart(flags.tail, _since(flags.since), flags.timestamps, flags.follow)
    workers = toolkit.workers(names, flags.worker, patience)
    opened: runs.Connections = {}  # those that ask are those that follow
    states = runs.states(workers, toolkit.clock, opened=opened, patience=patience)
    chosen = run or runs.latest(states)
    having = runs.holding(states, chosen)
    runs.require_log(states, chosen)
    if not run:
        console.say(f"run {chosen}")
    asked = flags.timestamps
    output = chosen_output(console, having, flags.output_directory, flags.json_lines, asked)
    stamped = Stamped(output, asked)
    try:
        found = runs.follow(
            having,
            chosen,
            stamped.write,
            toolkit.clock,
            part=part,
            notice=lambda worker, word: console.say(f"{worker.label}: {word}"),
            patience=patience,
            opened=opened,
        )
    except KeyboardInterrupt as signal:
        error = interruption(signal)
        if any(
            job.run == chosen and job.state == "running"
            for each in states
            for job in each.value or ()
        ):
            error.exists = (f"run {chosen} goes on",)
            error.fix = Fix.command("tpukit", "kill", names, chosen, note="ends it")
            if isinstance(error, Interrupted):
                console.say(error.exists[0])
                console.suggest(error.fix)
                return None
        raise error from None
    finally:
        output.finish()
    for each in found:
        if each.error:
            console.warn(f"{each.item.label}: {each.error.summary()}")
    return found


def _since(text: str) -> float | None:
    """Return seconds since the epoch, or below zero before now, as a log is asked for them."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        pass
    try:
        return -flag.seconds(text, "--since")
    except BadInput:
        fix = Fix(note="for example: --since 10m, --since 2026-11-22T14:30 (here), …T14:30Z (UTC)")
        raise BadInput(f"{one_line(text)!r} is neither a duration nor a time", fix=fix) from None
