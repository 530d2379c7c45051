"""`tpukit logs`: print the output of a detached run, from all workers at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.agent.per_chip import mark_of
from tpukit.cli import parameters as flag
from tpukit.cli.interrupted_runs import left_alone
from tpukit.cli.output import MarkedLines, Output, chosen_output
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import outcome_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, Interrupted, TpukitError, interruption

if TYPE_CHECKING:
    from tpukit.jobs.detached_job import JobResult
    from tpukit.ssh.fan_out import Outcome
    from tpukit.ssh.worker import RemoteWorker

    Followed = list[Outcome[RemoteWorker, JobResult | None]]


#: The bytes at the end of each log in which a known error is looked for.
_KEPT = 16 << 10


@dataclass(frozen=True)
class OutputFlags:
    """The workers, the form of their output, and the wait for a lost worker."""

    worker: flag.Workers = "all"
    output_directory: Annotated[
        str, Option(metavar="DIRECTORY", help="Write each worker's log to a new file instead.")
    ] = ""
    json_lines: flag.JsonLines = False
    timeout: flag.Timeout = "5m"  # enough for a sleeping laptop or a worker's restart


@dataclass(frozen=True)
class LogFlags(OutputFlags):
    """The flags of `tpukit logs`."""

    follow: Annotated[
        bool, Option("--follow", "-f", help="Wait for output until the run ends.")
    ] = False
    tail: Annotated[
        int | None, Option(metavar="N", help="Only the last N lines of each worker.", min=0)
    ] = None
    chip: Annotated[
        int | None, Option(metavar="N", help="Only lines of this chip, of a run --per-chip.", min=0)
    ] = None


EVERYTHING, WHOLE = OutputFlags(), LogFlags()
#: The result if Ctrl-C ended the command while the run goes on.
LEFT = View({}, status=Interrupted.exit_code)


@flag.connecting
def logs(
    toolkit: Toolkit,
    name: flag.OnlyNames = flag.LEFT_OUT,
    run: flag.RunId = "",
    flags: LogFlags = WHOLE,
) -> View:
    """Print the output of a detached run.

    If a connection is lost, tpukit connects again for as long as the timeout, and continues without
    lost or repeated lines. Output of a single worker is printed unchanged, as `tpukit run` does.

    Examples:
      tpukit logs demo -f --tail 20
      tpukit logs demo 20261121-143355-3f2a --worker 0 > log.txt
      tpukit logs demo --worker 0 --chip 2 > chip-2.txt
    """
    outcomes, _ = read(toolkit, name, run, flags)
    return LEFT if outcomes is None else View({}, status=outcome_views.worst(outcomes))


def read(
    toolkit: Toolkit, names: str, run: str, flags: LogFlags
) -> tuple[Followed | None, Mapping[RemoteWorker, bytes]]:
    """Print a run's output from all workers; warn of workers that lost it or cannot be reached.

    Returns the outcomes and the last bytes of each log. The outcomes are None if Ctrl-C ended the
    command while the run goes on, which is no error.
    """
    from tpukit.jobs import runs
    from tpukit.jobs.detached_job import LogPart

    console = toolkit.console
    if console.as_json:
        raise BadInput("--json cannot show a log", fix=Fix(note="use --json-lines"))
    patience = flag.seconds(flags.timeout)
    mark = b"" if flags.chip is None else mark_of(flags.chip)
    part = LogPart(flags.tail, flags.follow, mark.decode())
    opened: runs.Connections = {}  # follow uses the connections of states again
    try:
        workers = toolkit.reach.workers(names, flags.worker, patience)
        states = runs.states(workers, toolkit.clock, opened=opened, patience=patience)
    except KeyboardInterrupt as signal:
        if run:
            raise left_alone(signal, names, run, "was not ended") from None
        raise
    chosen = run or runs.latest(states)
    having = runs.holding(states, chosen)
    runs.require_log(states, chosen)
    if not run:
        console.say(f"run {chosen}")
    output = chosen_output(console, having, flags.output_directory, flags.json_lines)
    marked = MarkedLines(mark)
    ends: dict[RemoteWorker, bytes] = {}

    def show(worker: RemoteWorker, data: bytes) -> None:
        data = marked.of(worker, data) if mark else data
        if not data:
            return
        output.log(worker, data)
        ends[worker] = (ends.get(worker, b"") + data)[-_KEPT:]

    try:
        outcomes = runs.follow(
            having,
            chosen,
            show,
            toolkit.clock,
            part=part,
            notice=lambda worker, word: console.say(f"{worker.label}: {word}"),
            patience=patience,
            opened=opened,
        )
    except KeyboardInterrupt as signal:
        jobs = [job for state in states for job in state.value or () if job.run == chosen]
        if not any(job.state == "running" for job in jobs):
            raise interruption(signal) from None
        error = left_alone(signal, names, chosen, "goes on")
        if not isinstance(error, Interrupted):
            raise error from None
        console.say(*error.exists)
        for fix in filter(None, (error.fix, error.otherwise)):
            console.suggest(fix)
        return None, ends
    except BrokenPipeError:
        raise
    except OSError as error:
        output = Output()  # there is nowhere to write incomplete last lines
        raise TpukitError(
            f"the log of run {chosen} cannot be written here",
            reason=error.strerror or "",
            why="the run itself was not ended; the worker keeps its log",
            fix=Fix.command("tpukit", "attach", names, chosen, note="follows it again"),
        ) from error
    finally:
        output.finish()
    if mark and not ends:
        console.say(f"run {chosen} has written nothing on chip {flags.chip}")
    for outcome in outcomes:
        if outcome.error:
            console.warn(f"{outcome.item.label}: {outcome.error.summary()}")
    return outcomes, ends
