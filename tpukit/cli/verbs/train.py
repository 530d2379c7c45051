"""`tpukit train`: push a folder, start a detached run there, follow it, and fetch its results."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.interrupted_runs import nothing_started
from tpukit.cli.python_commands import (
    NO_PROGRAM,
    environment_for,
    explain_missing_program,
    naming_the_command,
    required_command,
)
from tpukit.cli.requirement_flags import RequirementFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs import attach, provision
from tpukit.cli.verbs.cp import cp
from tpukit.cli.verbs.logs import LEFT, OutputFlags
from tpukit.cli.verbs.push import PushFlags, source_of
from tpukit.cli.verbs.run import (
    VariableFlags,
    check_run_id,
    check_start,
    given_variables,
    require_chips,
    start_run,
)
from tpukit.console import View
from tpukit.errors import BadInput, Fix, Interrupted, Terminated, TpukitError, interruption
from tpukit.slices.find import is_pattern
from tpukit.text import one_line


@dataclass(frozen=True)
class TrainFlags(PushFlags):
    """The folder of the program, the name of its run, and its results."""

    push: Annotated[str, Option(metavar="DIRECTORY", help="Folder to push.")] = "."
    run_id: Annotated[str, Option(metavar="RUN", help="Name of the run; default: the time.")] = ""
    per_chip: flag.PerChip = False
    fetch: Annotated[
        list[str] | None,
        Option(
            metavar="PATH",
            help="At the end, copy this file or folder back, from worker 0; it is never pushed.",
        ),
    ] = None


def train(
    toolkit: Toolkit,
    name: flag.OnlyNames = flag.LEFT_OUT,
    *,
    how: TrainFlags,
    environment: VariableFlags,
    on_top: RequirementFlags,
    route: flag.RouteFlags,
    command: flag.Command = None,
    timeout: flag.Timeout = "5m",
) -> View:
    """Push this folder, run a command there on every worker, and follow it to its end.

    With --with or --requirements, tpukit first brings the environment up to date. The run is
    detached: Ctrl-C, a closed lid or a lost connection does not end it, and `tpukit attach` follows
    it again. The exit status is the highest of all workers. The push is refused if it would replace
    what a program has written: name that with --fetch, or in .gitignore. For --per-chip see `run`.

    Examples:
      tpukit train demo -- python train.py --steps 1000
      tpukit train demo --with flax --requirements requirements.txt -- python train.py
      tpukit train demo --fetch results -- python evaluate.py
      tpukit train demo --per-chip -- python train.py --seed {chip}
    """
    from tpukit.jobs.shell_environment import shell_lines
    from tpukit.ssh.fan_out import values

    toolkit = toolkit.by(route)
    line = required_command("train", name, command, "python train.py")
    if toolkit.flags.as_json:
        fix = Fix(note="tpukit run --push . --detach --json only starts it")
        raise BadInput("--json cannot show a log", fix=fix)
    fetched = _fetched(how, name)
    variables = given_variables(environment, toolkit)
    check_run_id(how.run_id)
    source = source_of(how, toolkit.console)
    if fetched:  # results of an earlier run, which may differ among the workers
        source = replace(source, tree=source.tree.without(fetched))
    with nothing_started(), naming_the_command("train", name, command or ()):
        workers = toolkit.reach.workers(name, "all", flag.seconds(timeout))
        if how.per_chip:
            require_chips(workers)
        recipe = environment_for(toolkit, environment.with_, workers, line)
        provisions = bool(environment.with_) or on_top != RequirementFlags()
        check_start(toolkit, workers, how.run_id, "" if provisions else recipe)
        values(source.send(toolkit, workers))
        if provisions:
            provision.apply(toolkit, name, [recipe] if recipe else None, on_top, route=route)
            recipe = recipe or flag.DEFAULT_RECIPE
    folder = environment.workdir or source.target
    run = start_run(
        toolkit,
        workers,
        how.run_id,
        line,
        shell_lines(variables, recipe, folder),
        per_chip=how.per_chip,
        commit=source.tree.commit,
    )
    result = attach.attach(toolkit, name, run, OutputFlags(timeout=timeout), route)
    if result.status == NO_PROGRAM:
        explain_missing_program(toolkit, workers, recipe, line)
    if not fetched:
        return result
    results = f"{name}:{posixpath.join(source.target.removeprefix('./'), fetched)}"
    back = os.path.relpath((source.tree.root / fetched).parent)
    back = os.path.join("" if back[0] == "." else ".", back, "")  # never like NAME:PATH
    again = Fix.command("tpukit", "cp", results, back, note="copies what the run has written")
    if result is LEFT:
        return replace(result, next=[again])
    copy = partial(cp, toolkit, [results, back], timeout=timeout, route=route)
    return _with_results(result, again, copy)


def _fetched(how: TrainFlags, name: str) -> str:
    """Return the path to copy back, or ""; raise `BadInput` if it cannot be copied."""
    if not how.fetch:
        return ""
    if len(how.fetch) > 1:
        fix = Fix(note="let the program write into one folder, and name that")
        raise BadInput("--fetch takes one file or folder", fix=fix)
    path = PurePosixPath(how.fetch[0])
    no_name = not path.parts or path.is_absolute() or ".." in path.parts
    if no_name or set("*?[") & {*how.fetch[0]}:
        fix = Fix(note="name a file or folder that the program writes in its folder")
        raise BadInput(f"--fetch cannot copy {one_line(how.fetch[0])}", fix=fix)
    if "," in name or is_pattern(name):
        raise BadInput("--fetch needs one slice", fix=Fix(note="name one, or leave out --fetch"))
    return how.fetch[0]


def _with_results(result: View, again: Fix, copy: Callable[[], View]) -> View:
    """Return the result of a run with that of the copy of its results; `again` copies them later.

    If the run has failed, a failed copy is only a warning.
    """
    try:
        fetched = copy()
    except (KeyboardInterrupt, TpukitError) as caught:
        error = interruption(caught) if isinstance(caught, KeyboardInterrupt) else caught
        if isinstance(error, (Interrupted, Terminated)):
            error.exists, error.fix = ("the run has ended; files that have arrived stay",), again
        elif result.status:
            return replace(result, warnings=[*result.warnings, error.summary()])
        else:
            what = f"the run has succeeded, but its results were not copied: {error.what}"
            error = TpukitError(what, reason=error.reason, why=error.why, fix=again)
        raise error from None
    warnings = [*result.warnings, *fetched.warnings]
    status = max(result.status, fetched.status)
    return replace(fetched, warnings=warnings, next=result.next, status=status)
