"""How a command ended on each worker, as a document, warnings and an exit status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tpukit.cli.output import place
from tpukit.console import View
from tpukit.text import sanitize

if TYPE_CHECKING:
    from tpukit.remote.command.attached import CommandOutcome
    from tpukit.remote.command.fan_out import Outcome


#: Of what a failed command wrote: lines that are shown again at the end.
_LAST_LINES = 5


def results(found: Sequence[CommandOutcome], *, as_lines: bool) -> View:
    """Return how a command ended on each worker, with a warning for each on which it failed.

    The status is the highest; who was only stopped because of another's failure does not count.
    """
    from tpukit.remote.command.attached import CommandCancelled

    counted = [each for each in found if not isinstance(each.error, CommandCancelled)]
    failed = [each for each in found if not as_lines and not (each.value and each.value.ok)]
    return View(
        {"results": [_result(each) for each in found]},
        warnings=[line for each in failed for line in _failure(each, alone=len(found) == 1)],
        next=tuple(
            dict.fromkeys(each.error.fix for each in failed if each.error and each.error.fix)
        ),
        status=max(map(_status, counted), default=0),
    )


def ending(result: CommandOutcome) -> dict[str, Any]:
    """Return the document of how a command ended on a worker, without its output."""
    end = {"error": result.error.document()} if result.error else {"status": _status(result)}
    return {**place(result.item), **end}


def worst(found: Iterable[Outcome[Any, Any]]) -> int:
    """Return the highest exit status of the errors among these outcomes."""
    return max((each.error.exit_code for each in found if each.error), default=0)


def _failure(result: CommandOutcome, alone: bool) -> list[str]:
    """Name a worker on which a command failed, with the end of what it wrote."""
    if result.error:
        return [result.error.summary()]
    if alone or not result.value:
        return []
    label, done = result.item.label, result.value
    written = sanitize(done.stderr.strip() or done.stdout.strip()).splitlines()[-_LAST_LINES:]
    return [f"{label} exited with status {done.status}", *(f"{label}: {line}" for line in written)]


def _status(result: CommandOutcome) -> int:
    if result.error:
        return result.error.exit_code
    assert result.value is not None
    return result.value.status


def _result(result: CommandOutcome) -> dict[str, Any]:
    names = ("stdout", "stderr") if result.value else ()
    streams = {name: getattr(result.value, name).decode("utf-8", "replace") for name in names}
    return {**ending(result), **streams}
