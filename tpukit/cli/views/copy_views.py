"""Copies and pushes as tables and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpukit.cli.views.outcome_views import worst
from tpukit.console import View

if TYPE_CHECKING:
    from tpukit.remote.command.fan_out import Outcome
    from tpukit.remote.connection.worker import RemoteWorker


def received(found: Sequence[Outcome[RemoteWorker, list[Path]]]) -> View:
    """Show the paths here that hold what was received; raise as `copied` does."""
    from tpukit.remote.command.fan_out import Outcome

    paths = [[str(path) for path in each.value or ()] for each in found]
    results = [
        Outcome(each.item, here, each.error) for each, here in zip(found, paths, strict=True)
    ]
    return replace(copied(results), rows=[[path] for here in paths for path in here])


def copied(found: Sequence[Outcome[RemoteWorker, Any]]) -> View:
    """Show what each worker got; raise the error where there is one worker and it failed."""
    if len(found) == 1 and found[0].error:
        raise found[0].error
    documents = [
        {
            "worker": each.item.index,
            **({"error": each.error.document()} if each.error else {"result": each.value}),
        }
        for each in found
    ]
    failed = [f"{each.item.label}: {each.error.summary()}" for each in found if each.error]
    return View({"copied": documents}, warnings=failed, status=worst(found))
