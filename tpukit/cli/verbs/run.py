"""`tpukit run`: run a command on every worker or on some, attached or detached."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.interrupted_runs import nothing_started
from tpukit.cli.output import chosen_output
from tpukit.cli.push_flags import PushFlags
from tpukit.cli.python_commands import (
    NO_PROGRAM,
    cache_variable,
    environment_for,
    explain_missing_program,
    required_command,
)
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import job_views, outcome_views
from tpukit.console import Console, View
from tpukit.errors import BadInput, Fix

if TYPE_CHECKING:
    from tpukit.jobs.attached import AttachedRun, CommandRequest
    from tpukit.ssh.worker import RemoteWorker

#: The most bytes of output in a JSON document, for all workers together.
_DOCUMENT_BYTES = 64 << 20
#: The flags that cannot be used with --detach.
_ATTACHED = (
    *("output_directory", "json_lines", "stdin", "deadline", "at_once", "fail_fast"),
    *("grace", "signal"),
)


@dataclass(frozen=True)
class RunFlags:
    """How to run the command, and the form of its output."""

    deadline: Annotated[
        str, Option(metavar="DURATION", help="End the command on each worker after this time.")
    ] = ""
    at_once: Annotated[
        int, Option(metavar="N", help="Run it on N workers at a time; default: all.", min=0)
    ] = 0
    fail_fast: Annotated[
        bool, Option("--fail-fast", help="If one worker fails, end the command on the others.")
    ] = False
    stdin: Annotated[bool, Option("--stdin", help="Send standard input to every worker.")] = False
    output_directory: Annotated[
        str, Option(metavar="DIRECTORY", help="Write each stream to a new file instead.")
    ] = ""
    json_lines: flag.JsonLines = False
    sudo: Annotated[bool, Option("--sudo", help="Run it as root, in the same environment.")] = False
    per_chip: flag.PerChip = False
    signal: Annotated[
        str, Option(metavar="NAME", help="Signal to send before TERM and KILL; default: INT.")
    ] = ""
    grace: Annotated[
        str, Option(metavar="DURATION", help="Time for it to end before KILL; default: 10s.")
    ] = ""
    detach: Annotated[
        bool, Option("--detach", "-d", help="Start it on every worker and leave it running.")
    ] = False
    clean: Annotated[
        bool, Option("--clean", help="Refuse if a process holds a device, or a chip is missing.")
    ] = False
    run_id: Annotated[
        str, Option(metavar="RUN", help="Name of the detached run; default: the time.")
    ] = ""
    log_limit: Annotated[
        str, Option(metavar="SIZE", help="Most of its log that a detached run keeps; default: 1G.")
    ] = ""


@dataclass(frozen=True)
class VariableFlags:
    """The environment of the command. Variables are sent over the connection, not as arguments."""

    env: Annotated[
        list[str] | None,
        Option(metavar="NAME[=VALUE]", help="Set a variable; without VALUE, to your own value."),
    ] = None
    env_file: Annotated[
        str, Option(metavar="FILE", help="Set the variables in a file with NAME=VALUE lines.")
    ] = ""
    with_: flag.With = ""
    workdir: Annotated[
        str, Option(metavar="PATH", help="Folder to start in; default: home, or the pushed folder.")
    ] = ""


@flag.connecting
def run(
    toolkit: Toolkit,
    name: flag.OnlyNames = flag.LEFT_OUT,
    *,
    how: RunFlags,
    tree: PushFlags,
    environment: VariableFlags,
    command: flag.Command = None,
    worker: flag.Workers = "all",
    timeout: flag.Timeout = "60s",
) -> View:
    """Run a command once on every worker.

    The exit status is the highest of all workers. One word after -- is a shell line; several words
    run exactly as given. {worker}, {workers}, {coordinator}, {slice}, {slice_index} and {slices}
    are replaced by each worker's values. python is the one of the provisioned environment
    if the slice has exactly one. Ctrl-C ends the command on every worker. The timeout is for
    connecting.

    With --per-chip, each worker starts one process for each of its chips, and each process sees
    only its own chip, as if that were the whole slice. {chip} and {chips} are replaced by the
    chip's number and the worker's number of chips.

    Examples:
      tpukit run -- hostname
      tpukit run demo --worker 0,2-3 -- python3 train.py --steps 100
      tpukit run demo -- python3 train.py --process {worker} --of {workers}
      tpukit run demo --push . --detach -- python train.py
      tpukit run demo --per-chip -- python train.py --seed {chip}
    """
    from tpukit.jobs.shell_environment import shell_lines
    from tpukit.ssh.fan_out import values

    line = required_command(command)
    variables = given_variables(environment, toolkit)
    _check(how, tree, toolkit.console)
    request, log_limit = _request(how, line), flag.size(how.log_limit or "1G")
    source = None
    if tree.push:
        from tpukit.cli.verbs.push import source_of

        source = source_of(tree, toolkit.console)
    patience = flag.seconds(timeout)
    with nothing_started():
        workers = toolkit.reach.workers(name, worker, patience)
        if how.per_chip:
            require_chips(workers)
        recipe = environment_for(toolkit, environment.with_, workers, line)
        if how.detach:
            check_start(toolkit, workers, how.run_id, recipe)
        if how.clean:
            _require_clean(toolkit, name, workers, patience)
        if source:
            values(source.send(toolkit, workers))
    folder = environment.workdir or (source.target if source else "")
    lines = shell_lines(variables, recipe, folder)
    if how.detach:
        chosen = start_run(
            toolkit,
            workers,
            how.run_id,
            line,
            lines,
            sudo=how.sudo,
            per_chip=how.per_chip,
            log_limit=log_limit,
            commit=source.tree.commit if source else "",
        )
        return job_views.started(name, chosen, workers)
    return _attached(toolkit, workers, how, replace(request, environment=lines), recipe)


def _require_clean(
    toolkit: Toolkit, name: str, workers: list[RemoteWorker], patience: float
) -> None:
    """Raise `DevicesBusy` if one of the slices is not clean."""
    from tpukit.smoke.cleanliness import require_clean

    for slice_ in toolkit.slices.find_named(name, toolkit.deadline(patience)):
        own = [worker for worker in workers if worker.slice == slice_.name]
        require_clean(own, slice_, toolkit.clock, patience)


def _check(how: RunFlags, tree: PushFlags, console: Console) -> None:
    for name in _ATTACHED:
        if how.detach and getattr(how, name):
            raise BadInput(f"--{name.replace('_', '-')} and --detach exclude each other")
    if how.json_lines and console.as_json:
        raise BadInput("--json and --json-lines exclude each other", fix=Fix(note="choose one"))
    if how.stdin and how.per_chip:
        raise BadInput("--stdin and --per-chip exclude each other")
    if how.run_id and not how.detach:
        raise BadInput("--run-id needs --detach", fix=Fix(note="add --detach"))
    check_run_id(how.run_id)
    for name in ("to", "with_secrets", "overwrite"):
        if getattr(tree, name) and not tree.push:
            what = f"--{name.replace('_', '-')} needs --push"
            raise BadInput(what, fix=Fix(note="add --push ."))
    if how.log_limit and not how.detach:
        raise BadInput("--log-limit needs --detach", fix=Fix(note="add --detach"))


def _request(how: RunFlags, line: str) -> CommandRequest:
    from tpukit.jobs.attached import CommandRequest
    from tpukit.jobs.end import GRACE_SECONDS, signal_name

    return CommandRequest(
        command=line,
        limit=flag.seconds(how.deadline, "--deadline") if how.deadline else None,
        at_once=how.at_once,
        fail_fast=how.fail_fast,
        first=signal_name(how.signal or "INT"),
        grace=flag.seconds(how.grace, "--grace") if how.grace else GRACE_SECONDS,
        sudo=how.sudo,
        per_chip=how.per_chip,
    )


def require_chips(workers: list[RemoteWorker]) -> None:
    """Raise `BadInput` if the number of chips of a worker is unknown."""
    unknown = next((worker.slice for worker in workers if not worker.accelerator), None)
    if unknown is not None:
        fix = Fix(note="start the processes yourself, each with its own TPU_VISIBLE_CHIPS")
        raise BadInput(f"how many chips a worker of {unknown} has is unknown", fix=fix)


def given_variables(given: VariableFlags, toolkit: Toolkit) -> dict[str, str]:
    """Return the variables that the flags set; raise `BadInput` if a flag is wrong."""
    from tpukit.jobs import shell_environment

    own = toolkit.environ
    content = flag.file_bytes(given.env_file, "--env-file") or b""
    variables = cache_variable(toolkit) | shell_environment.parse_file(content, own)
    variables |= shell_environment.parse_assignments(given.env or (), own)
    if given.with_:
        flag.check_recipe(given.with_, toolkit.project_files.recipes.names())
    return variables


def check_run_id(given: str) -> None:
    """Raise `BadInput` if a run id is given that cannot be one, or that `serve` has."""
    if not given:
        return
    from tpukit.jobs.services import RUN
    from tpukit.ssh.worker_files import checked_run_id

    if given == RUN:
        fix = Fix(note="choose another --run-id, or leave it out")
        raise BadInput(f"the run {RUN} is that of tpukit serve", fix=fix)
    checked_run_id(given)


def check_start(
    toolkit: Toolkit, workers: list[RemoteWorker], run_id: str, recipe: str = ""
) -> None:
    """Raise an error if a detached run could not start, before anything is changed for it.

    Raises `NameTaken` if the given run id is in use, and `NotFound` if the environment is missing.
    """
    from tpukit.jobs import python_environments, runs

    if recipe:
        python_environments.require_environment(workers, recipe, toolkit.clock)
    if run_id:
        runs.require_free(workers, run_id, toolkit.clock)


def start_run(
    toolkit: Toolkit,
    workers: list[RemoteWorker],
    run_id: str,
    command: str,
    lines: str,
    **further: Any,
) -> str:
    """Start a detached run on all workers and return its id; `further` goes to `runs.start`."""
    from tpukit.jobs import runs
    from tpukit.ssh.worker_files import new_run_id

    chosen = run_id or new_run_id(toolkit.clock)
    toolkit.console.say(f"run {chosen}")
    runs.start(workers, chosen, command, lines, toolkit.clock, **further)
    toolkit.console.say(f"{len(workers)} of {len(workers)} workers started it")
    return chosen


def _attached(
    toolkit: Toolkit,
    workers: list[RemoteWorker],
    how: RunFlags,
    request: CommandRequest,
    recipe: str,
) -> View:
    from tpukit.jobs.attached import AttachedRun
    from tpukit.jobs.stdin import readers

    console = toolkit.console
    in_document = min(4 << 20, _DOCUMENT_BYTES // (2 * len(workers)))
    stdin = readers(iter(_read_input, b""), len(workers)) if how.stdin else None
    request = replace(request, stdin=stdin, keep=in_document if console.as_json else 16 << 10)
    output = chosen_output(console, workers, how.output_directory, how.json_lines)
    command = AttachedRun(request, toolkit.clock, output.write, console.say)
    if not how.output_directory:
        _end_with_the_reader(command, console)
    try:
        results = command.on_all(workers)
    finally:
        output.finish()
    for line in command.remains if how.fail_fast else ():
        console.warn(line)
    if fix := command.end_line:
        console.suggest(fix)
    missing = [
        result.item for result in results if result.value and result.value.status == NO_PROGRAM
    ]
    if missing:
        explain_missing_program(toolkit, missing, recipe, request.command)
    if how.json_lines:
        console.write_json_lines(map(outcome_views.ending, results))
    return outcome_views.results(results, as_lines=how.json_lines)


def _read_input() -> bytes:
    # Unbuffered: a thread that holds a buffer's lock would abort the interpreter when it exits.
    return os.read(sys.stdin.fileno(), 1 << 16) if sys.stdin else b""


def _end_with_the_reader(command: AttachedRun, console: Console) -> None:
    """End the command if the reader of its output closes the pipe, as `head` does."""
    import select
    import stat

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)
        poll.poll()
        command.fail(BrokenPipeError())

    with suppress(OSError, ValueError):  # a test's output may be no file
        descriptor = console.out.fileno()
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            threading.Thread(target=watch, name="tpukit-reader", daemon=True).start()
