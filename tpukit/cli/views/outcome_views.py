"""The results of a command on each worker, as a document, warnings and an exit status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpukit.cli.output import place
from tpukit.console import View
from tpukit.errors import Fix
from tpukit.text import sanitize

if TYPE_CHECKING:
    from tpukit.jobs.attached import CommandOutcome
    from tpukit.ssh.fan_out import Outcome
    from tpukit.ssh.target import Completed
    from tpukit.ssh.worker import RemoteWorker


#: The number of lines of a failed command's output that are shown again at the end.
_LAST_LINES = 5


def results(outcomes: Sequence[CommandOutcome], *, as_lines: bool) -> View:
    """Show the result of a command on each worker, with a warning for each failure.

    The status is the highest one, without workers that were stopped because another failed.
    """
    from tpukit.jobs.attached import CommandCancelled

    counted = [result for result in outcomes if not isinstance(result.error, CommandCancelled)]
    failed = [
        result for result in outcomes if not as_lines and not (result.value and result.value.ok)
    ]
    alone = len(outcomes) == 1
    ends = {result.item: output(result.value) for result in failed if result.value}
    causes, remedies = known_causes(ends)
    return View(
        {"results": [_result(result) for result in outcomes]},
        warnings=[
            *(line for result in failed for line in _failure(result, alone=alone)),
            *causes,
        ],
        next=[*fixes(failed), *remedies],
        status=max(map(_status, counted), default=0),
    )


def known_causes(ends: Mapping[RemoteWorker, str]) -> tuple[list[str], list[Fix]]:
    """Return warnings about known errors at the end of failed programs' output, and remedies."""
    if not ends:
        return [], []
    from tpukit.explain.known_errors import of_program

    explained = {worker: of_program(text, worker.slice) for worker, text in ends.items()}
    causes, remedies = [], []
    for known in dict.fromkeys(explanation for explanation in explained.values() if explanation):
        labels = [worker.label for worker, explanation in explained.items() if explanation == known]
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        causes.append(f"{labels[0]}{more}: {known.cause}")
        remedies.append(known.fix)
    return causes, remedies


def ending(result: CommandOutcome) -> dict[str, Any]:
    """Return the document of a command's end on a worker, without its output."""
    end = {"error": result.error.document()} if result.error else {"status": _status(result)}
    return {**place(result.item), **end}


def fixes(outcomes: Iterable[Outcome[Any, Any]]) -> list[Fix]:
    """Return the fixes of the errors among these outcomes, each once."""
    known = (outcome.error.fix for outcome in outcomes if outcome.error)
    return list(dict.fromkeys(fix for fix in known if fix))


def worst(outcomes: Iterable[Outcome[Any, Any]]) -> int:
    """Return the highest exit status of the errors among these outcomes, or 0."""
    return max((outcome.error.exit_code for outcome in outcomes if outcome.error), default=0)


def _failure(result: CommandOutcome, alone: bool) -> list[str]:
    """Return the lines about a failure on a worker, with the end of the command's output."""
    if result.error:
        return [result.error.summary()]
    if alone or not result.value:
        return []
    label, done = result.item.label, result.value
    written = sanitize(output(done)).splitlines()[-_LAST_LINES:]
    return [f"{label} exited with status {done.status}", *(f"{label}: {line}" for line in written)]


def output(done: Completed) -> str:
    """Return what a command has written to stderr, or else to stdout."""
    return (done.stderr.strip() or done.stdout.strip()).decode("utf-8", "replace")


def _status(result: CommandOutcome) -> int:
    if result.error:
        return result.error.exit_code
    assert result.value is not None
    return result.value.status


def _result(result: CommandOutcome) -> dict[str, Any]:
    return {**ending(result), **(result.value.streams() if result.value else {})}
