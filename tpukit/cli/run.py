"""`tpukit run`: one command on every worker, or on some, attached or left to go on by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from tpukit.cli import output
from tpukit.cli import parameters as flag
from tpukit.cli.route import EXTERNAL, Route
from tpukit.cli.toolkit import Toolkit
from tpukit.console import Console, View
from tpukit.errors import BadInput, interruption
from tpukit.text import one_line, quote, sanitize

if TYPE_CHECKING:
    from tpukit.remote.kept import KeptRun
    from tpukit.remote.runs import FleetRun, Order, Result
    from tpukit.remote.worker import RemoteWorker

#: Bytes of output that a JSON document carries of all workers together, at most.
_DOCUMENT_BYTES = 64 << 20
_LAST_LINES = 5


@dataclass(frozen=True)
class Flags:
    """How to run it, and what becomes of its output."""

    failed: Annotated[
        bool, Option("--failed", help="Only where the last command on the slice failed.")
    ] = False
    deadline: Annotated[
        str, Option(metavar="DURATION", help="End the command on a worker after so long.")
    ] = ""
    at_once: Annotated[
        int, Option(metavar="N", help="Workers that run it at the same time; default: all.", min=0)
    ] = 0
    fail_fast: Annotated[
        bool, Option("--fail-fast", help="End the others as soon as one fails.")
    ] = False
    keep: Annotated[
        bool, Option("--keep", help="Keep the connections open for the next run --keep.")
    ] = False
    stdin: Annotated[bool, Option("--stdin", help="Send standard input to every worker.")] = False
    output_directory: Annotated[
        str, Option(metavar="DIRECTORY", help="Collect each stream in a file instead.")
    ] = ""
    json_lines: Annotated[
        bool, Option("--json-lines", help="Print each line of output as a JSON document.")
    ] = False
    detach: Annotated[
        bool, Option("--detach", "-d", help="Start it on every worker and leave it running.")
    ] = False
    run_id: Annotated[
        str, Option(metavar="RUN", help="Name of the detached run; default: the time.")
    ] = ""


@dataclass(frozen=True)
class Environment:
    """The command's variables: sent over the connection, on no command line."""

    env: Annotated[
        list[str] | None,
        Option(metavar="NAME[=VALUE]", help="Set a variable; without a value: your own."),
    ] = None
    env_file: Annotated[
        str, Option(metavar="FILE", help="Set the variables of a file, NAME=VALUE a line.")
    ] = ""
    with_: Annotated[
        str, Option("--with", metavar="RECIPE", help="Use the provisioned environment's programs.")
    ] = ""


def run(
    toolkit: Toolkit,
    name: flag.Names,
    how: Flags,
    environment: Environment,
    route: Route,
    command: flag.Command = None,
    worker: flag.Workers = "all",
    timeout: flag.Timeout = "60s",
) -> View:
    """Run a command once on every worker.

    The exit status is the highest of all workers'. One word after -- is a shell line; several words
    are run exactly as they are. Ctrl-C ends it on every worker. The timeout is for connecting.

    Examples:
      tpukit run demo -- hostname
      tpukit run demo --worker 0,2-3 -- python3 train.py --steps 100
      tpukit run demo --with jax --env-file secrets.env --detach -- python train.py
    """
    toolkit = toolkit.by(route)
    line = flag.remote_command(command)
    if not line:
        raise BadInput("there is no command to run", fix=f"tpukit run {name} -- hostname")
    lines = _shell_lines(environment, toolkit)
    _check(how, route, toolkit.console)
    patience = flag.seconds(timeout)
    if how.keep:
        from tpukit.access import select

        fleet = toolkit.kept_fleet(name, patience)
        return _attached(toolkit, select(fleet.workers, worker), how, line, lines, fleet.run)
    workers = toolkit.workers(name, worker, patience)
    if how.detach:
        return _detach(toolkit, name, workers, how.run_id, line, lines)
    return _attached(toolkit, workers, how, line, lines)


def _check(how: Flags, route: Route, console: Console) -> None:
    attached = {
        "--output-directory": how.output_directory,
        "--json-lines": how.json_lines,
        "--stdin": how.stdin,
        "--deadline": how.deadline,
        "--at-once": how.at_once,
        "--fail-fast": how.fail_fast,
        "--failed": how.failed,
        "--keep": how.keep,
    }
    for name, given in attached.items():
        if given and how.detach:
            raise BadInput(f"{name} has no meaning with --detach")
    if how.keep and (how.stdin or how.fail_fast or route != EXTERNAL):
        raise BadInput(
            "--keep has no meaning with --stdin, --fail-fast, --iap, --internal-ips and --jump",
            fix="leave it out",
        )
    if how.json_lines and console.as_json:
        raise BadInput("--json and --json-lines are two forms of one output", fix="choose one")
    if how.run_id and not how.detach:
        raise BadInput("--run-id names a detached run", fix="add --detach")


def _shell_lines(given: Environment, toolkit: Toolkit) -> str:
    from tpukit.remote import environment

    own = toolkit.environ
    content = flag.file_bytes(given.env_file, "--env-file") or b""
    variables = environment.parse_file(content.decode("utf-8", "replace"), own)
    variables |= environment.parse_assignments(given.env or (), own)
    if given.with_:
        from tpukit.provision.recipes import recipe_names

        if given.with_ not in recipe_names():
            fix = f"--with {' or '.join(recipe_names())}"
            raise BadInput(f"there is no recipe {one_line(given.with_)}", fix=fix)
    return environment.shell_lines(variables, given.with_)


def _detach(
    toolkit: Toolkit, name: str, workers: list[RemoteWorker], run_id: str, line: str, lines: str
) -> View:
    from tpukit import detached

    chosen = run_id or detached.new_run_id(toolkit.clock)
    toolkit.console.say(f"run {chosen}")
    detached.start(workers, chosen, line, lines, toolkit.clock)
    toolkit.console.say(f"{len(workers)} of {len(workers)} workers started it")
    document = {"run": chosen, "workers": [output.place(each) for each in workers]}
    follow = quote(["tpukit", "logs", name, chosen, "-f"])
    return View({"started": document}, rows=[[chosen]], hint=follow)


def _attached(
    toolkit: Toolkit,
    workers: list[RemoteWorker],
    how: Flags,
    line: str,
    lines: str,
    kept: Callable[..., KeptRun] | None = None,
) -> View:
    from tpukit.last_run import FailedWorkers
    from tpukit.remote.runs import FleetRun

    console, memory = toolkit.console, FailedWorkers(toolkit.paths.last_run)
    chosen = memory.among(workers) if how.failed else workers
    sink = _sink(console, how, chosen)
    order = _order(how, line, lines, len(chosen), console.as_json)
    going = (kept or FleetRun)(order, toolkit.clock, sink.hear)
    try:
        results = going.on_all(chosen)
    except KeyboardInterrupt as signal:
        raise _interrupted(signal, going) from None
    finally:
        sink.finish()
    if how.fail_fast:
        for each in going.unreached:
            console.warn(f"the command may still run on {each.label}: not reached")
    memory.remember(chosen, [each.item for each in results if not _succeeded(each)])
    return _view(console, how, results)


def _order(how: Flags, line: str, lines: str, workers: int, as_json: bool) -> Order:
    from tpukit.remote.broadcast import Broadcast
    from tpukit.remote.runs import Order

    document = min(4 << 20, _DOCUMENT_BYTES // (2 * workers))
    return Order(
        command=line,
        environment=lines,
        stdin=Broadcast(iter(_read_input, b"")).reader if how.stdin else None,
        limit=flag.seconds(how.deadline) if how.deadline else None,
        at_once=how.at_once,
        fail_fast=how.fail_fast,
        keep=document if as_json else 16 << 10,
    )


def _read_input() -> bytes:
    # Unbuffered: a thread that waits in a buffer's lock would abort the interpreter at its end.
    return os.read(sys.stdin.fileno(), 1 << 16) if sys.stdin else b""


def _sink(console: Console, how: Flags, workers: list[RemoteWorker]) -> output.Output:
    if how.output_directory:
        folder = output.Folder(Path(how.output_directory))
        folder.prepare(workers)
        return folder
    if how.json_lines:
        return output.Lines(output.as_json_lines(console))
    if console.as_json:
        return output.Nowhere()
    if len(workers) == 1:
        return output.Raw(console)
    several = len({each.slice for each in workers}) > 1
    return output.Lines(output.prefixed(console, several))


def _interrupted(signal: KeyboardInterrupt, going: FleetRun | KeptRun) -> Exception:
    error = interruption(signal)
    missed = [each.label for each in going.unreached]
    error.why = "" if missed else "the command was ended on every worker"
    error.exists = tuple(f"the command may still run on {label}: not reached" for label in missed)
    return error


def _view(console: Console, how: Flags, results: list[Result]) -> View:
    for each in results:
        if how.json_lines:
            console.write_json_line(_outcome(each))
        elif not _succeeded(each):
            _tell(console, each, alone=len(results) == 1)
    codes = [_code(each) for each in results if not _was_stopped(each)]
    return View({"results": [_document(each) for each in results]}, status=max(codes, default=0))


def _tell(console: Console, result: Result, alone: bool) -> None:
    """Name a worker that failed, with the end of what it said."""
    label = result.item.label
    if result.error:
        console.warn(result.error.summary())
    elif result.value and not alone:
        console.warn(f"{label} exited with status {result.value.status}")
        said = result.value.stderr.strip() or result.value.stdout.strip()
        for line in sanitize(said).splitlines()[-_LAST_LINES:]:
            console.warn(f"{label}: {line}")


def _succeeded(result: Result) -> bool:
    return bool(result.value and result.value.ok)


def _was_stopped(result: Result) -> bool:
    from tpukit.remote.runs import Stopped

    return isinstance(result.error, Stopped)


def _code(result: Result) -> int:
    if result.error:
        return result.error.exit_code
    assert result.value is not None
    return result.value.status


def _outcome(result: Result) -> dict[str, Any]:
    if result.error:
        return {**output.place(result.item), "error": result.error.document()}
    assert result.value is not None
    return {**output.place(result.item), "status": result.value.status}


def _document(result: Result) -> dict[str, Any]:
    done = result.value
    if done is None:
        return _outcome(result)
    return {
        **_outcome(result),
        "stdout": done.stdout.decode("utf-8", "replace"),
        "stderr": done.stderr.decode("utf-8", "replace"),
    }
