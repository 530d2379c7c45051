"""Copies and pushes as tables and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpukit.cli.views.outcome_views import worst
from tpukit.console import View

if TYPE_CHECKING:
    from tpukit.ssh.fan_out import Outcome
    from tpukit.ssh.worker import RemoteWorker


def received(outcomes: Sequence[Outcome[RemoteWorker, list[Path]]]) -> View:
    """Show the local paths of the received files; raise the errors of `copied`."""
    from tpukit.ssh.fan_out import Outcome

    results = [
        Outcome(outcome.item, [str(path) for path in outcome.value or ()], outcome.error)
        for outcome in outcomes
    ]
    rows = [[path] for result in results for path in result.value or ()]
    return replace(copied(results), rows=rows)


def copied(outcomes: Sequence[Outcome[RemoteWorker, Any]]) -> View:
    """Show the result on each worker; if there is only one and it failed, raise its error."""
    if len(outcomes) == 1 and outcomes[0].error:
        raise outcomes[0].error
    documents, warnings = [], []
    for outcome in outcomes:
        result = {"error": outcome.error.document()} if outcome.error else {"result": outcome.value}
        documents.append({"worker": outcome.item.index, **result})
        if outcome.error:
            warnings.append(f"{outcome.item.label}: {outcome.error.summary()}")
    fixes = [outcome.error.fix for outcome in outcomes if outcome.error and outcome.error.fix]
    return View(
        {"copied": documents},
        warnings=warnings,
        next=tuple(dict.fromkeys(fixes)),
        status=worst(outcomes),
    )
