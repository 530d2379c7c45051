"""`--dry-run`: the calls that a command would make.

The command runs as usual, but with clients that only read. They record each write and go on as if
it had succeeded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.console import View
from tpukit.models import ApiCall
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.cli.toolkit import Toolkit

DryRun = Annotated[
    bool, Option("--dry-run", help="Show the calls that would change something; send none.")
]


def rehearse(toolkit: Toolkit, act: Callable[[Toolkit], object], full: int = 0) -> View:
    """Show the calls that `act` would send if the first `full` creates found no capacity."""
    calls: list[ApiCall] = []
    act(toolkit.rehearsal(calls.append, full))
    rows: list[list[object]] = []
    for call in calls:
        rows.append([one_line(f"{call.method} {call.url}")])
        rows += [[line] for line in json.dumps(call.body, indent=2).splitlines() if call.body]
    nothing = ["nothing to do: everything that you asked for exists"] if not calls else []
    return View({"dry_run": [call.document() for call in calls]}, rows=rows, warnings=nothing)
