"""`tpukit train`: push a folder, start a detached run there, follow it, and fetch its results."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.interrupted_runs import nothing_started
from tpukit.cli.push_flags import PushFlags
from tpukit.cli.python_commands import (
    NO_PROGRAM,
    environment_for,
    explain_missing_program,
    required_command,
)
from tpukit.cli.requirement_flags import RequirementFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs import attach, provision
from tpukit.cli.verbs.cp import cp
from tpukit.cli.verbs.logs import LEFT, OutputFlags
from tpukit.cli.verbs.push import source_of
from tpukit.cli.verbs.run import (
    VariableFlags,
    check_run_id,
    check_start,
    given_variables,
    require_chips,
    start_run,
)
from tpukit.console import View
from tpukit.errors import (
    BadInput,
    Fix,
    Interrupted,
    SliceLost,
    Terminated,
    TpukitError,
    TransportFailed,
    interruption,
)
from tpukit.slices.find import is_pattern
from tpukit.text import one_line


@dataclass(frozen=True)
class TrainFlags(PushFlags):
    """The folder of the program, the name of its run, and its results."""

    push: Annotated[
        str,
        Option(metavar="DIRECTORY", help="Folder to push; default: this one.", show_default=False),
    ] = "."
    run_id: Annotated[str, Option(metavar="RUN", help="Name of the run; default: the time.")] = ""
    per_chip: flag.PerChip = False
    fetch: Annotated[
        list[str] | None,
        Option(
            metavar="PATH",
            help="At the end, copy this file or folder back, from worker 0; it is never pushed. "
            "Repeatable.",
        ),
    ] = None


@flag.connecting
def train(
    toolkit: Toolkit,
    name: flag.OnlyNames = flag.LEFT_OUT,
    *,
    how: TrainFlags,
    environment: VariableFlags,
    on_top: RequirementFlags,
    command: flag.Command = None,
    timeout: flag.Timeout = "5m",
) -> View:
    """Push this folder, run a command there on every worker, and follow it to its end.

    With --with or --requirements, tpukit first brings the environment up to date. The run is
    detached: Ctrl-C, a closed lid or a lost connection does not end it, and `tpukit attach` follows
    it again. The exit status is the highest of all workers. The push is refused if it would replace
    a file that a program has written: name it with --fetch, or in .gitignore. See `run` for
    --per-chip.

    Examples:
      tpukit train demo -- python train.py --steps 1000
      tpukit train demo --with flax --requirements requirements.txt -- python train.py
      tpukit train demo --fetch results -- python evaluate.py
      tpukit train demo --per-chip -- python train.py --seed {chip}
    """
    from tpukit.jobs.shell_environment import shell_lines
    from tpukit.ssh.fan_out import values

    line = required_command(command)
    if toolkit.flags.as_json:
        fix = Fix(note="tpukit run --push . --detach --json only starts it")
        raise BadInput("--json cannot show a log", fix=fix)
    fetched = _fetched(how, name)
    variables = given_variables(environment, toolkit)
    check_run_id(how.run_id)
    source = source_of(how, toolkit.console)
    for path in fetched:  # results of an earlier run, which may differ among the workers
        source = replace(source, tree=source.tree.without(path))
    with nothing_started():
        workers = toolkit.reach.workers(name, "all", flag.seconds(timeout))
        if how.per_chip:
            require_chips(workers)
        recipe = environment_for(toolkit, environment.with_, workers, line)
        provisions = bool(environment.with_) or on_top != RequirementFlags()
        check_start(toolkit, workers, how.run_id, "" if provisions else recipe)
        values(source.send(toolkit, workers))
        if provisions:
            provision.apply(toolkit, name, [recipe] if recipe else None, on_top)
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
    result = attach.attach(toolkit, name, run, OutputFlags(timeout=timeout))
    if result.status == NO_PROGRAM:
        explain_missing_program(toolkit, workers, recipe, line)
    if not fetched:
        return result
    results = Results(name, source.target.removeprefix("./"), source.tree.root, timeout)
    if result is LEFT:
        return replace(result, next=results.commands(fetched))
    return results.added(toolkit, result, fetched)


def _fetched(how: TrainFlags, name: str) -> list[str]:
    """Return the paths to copy back; raise `BadInput` if one cannot be copied."""
    for given in how.fetch or ():
        path = PurePosixPath(given)
        no_name = not path.parts or path.is_absolute() or ".." in path.parts
        if no_name or set("*?[") & {*given}:
            fix = Fix(note="name a file or folder that the program writes in its folder")
            raise BadInput(f"--fetch cannot copy {one_line(given)}", fix=fix)
    if how.fetch and ("," in name or is_pattern(name)):
        raise BadInput("--fetch needs one slice", fix=Fix(note="name one, or leave out --fetch"))
    return list(dict.fromkeys(how.fetch or ()))


@dataclass(frozen=True)
class Results:
    """Where the results of a run are on worker 0 of a slice, and the folder here for them."""

    slice: str
    target: str
    root: Path
    timeout: str

    def commands(self, paths: Sequence[str]) -> list[Fix]:
        """Return the commands that copy the paths later, one for each folder here."""
        sources: dict[str, list[str]] = {}
        for path in paths:
            sources.setdefault(self._folder(path), []).append(self._source(path))
        note = "copies what the run has written"
        return [Fix.command("tpukit", "cp", *of, to, note=note) for to, of in sources.items()]

    def added(self, toolkit: Toolkit, result: View, paths: Sequence[str]) -> View:
        """Copy the paths, and return the result of the run with their files.

        If the run has failed, a failed copy is only a warning. Otherwise, and after an interrupt,
        the error suggests the commands for the paths that were not copied.
        """
        rows: list[Sequence[object]] = []
        failed: list[str] = []
        errors: list[TpukitError] = []
        for at, path in enumerate(paths):
            try:
                words = [self._source(path), self._folder(path)]
                rows += cp(toolkit, words, timeout=self.timeout).rows
            except (KeyboardInterrupt, Interrupted, Terminated) as caught:
                ended = interruption(caught) if isinstance(caught, KeyboardInterrupt) else caught
                ended.exists = ("the run has ended; files that have arrived stay",)
                raise self._suggesting(toolkit, ended, [*failed, *paths[at:]]) from None
            except TpukitError as error:
                failed.append(path)
                errors.append(error)
                if isinstance(error, (SliceLost, TransportFailed)):
                    failed += paths[at + 1 :]
                    break
        if errors and not result.status:
            first = errors[0]
            what = f"the run has succeeded, but its results were not copied: {first.what}"
            missing = TpukitError(what, reason=first.reason, why=first.why)
            raise self._suggesting(toolkit, missing, failed)
        warnings = [*result.warnings, *(error.summary() for error in errors)]
        return replace(result, rows=rows, warnings=warnings)

    def _suggesting(
        self, toolkit: Toolkit, error: TpukitError, paths: Sequence[str]
    ) -> TpukitError:
        """Return the error with the command that copies the paths; further ones are narrated."""
        error.fix, *more = self.commands(paths)
        for fix in more:
            toolkit.console.suggest(fix)
        return error

    def _source(self, path: str) -> str:
        return f"{self.slice}:{posixpath.join(self.target, path)}"

    def _folder(self, path: str) -> str:
        back = os.path.relpath((self.root / path).parent)
        return os.path.join("" if back[0] == "." else ".", back, "")  # never like NAME:PATH
