"""`--dry-run`: the calls that a command would make, and gcloud's commands for them.

The command runs as usual, but with clients that only read. They record each write and go on as if
it had succeeded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli.gcloud_line import gcloud_line
from tpukit.console import View
from tpukit.models import ApiCall
from tpukit.text import one_line, quote

if TYPE_CHECKING:
    from tpukit.cli.toolkit import Toolkit

DryRun = Annotated[
    bool, Option("--dry-run", help="Show the calls that would change something; send none.")
]


def rehearse(toolkit: Toolkit, act: Callable[[Toolkit], object], full: int = 0) -> View:
    """Show the calls that `act` would send if the first `full` creates found no capacity."""
    calls: list[ApiCall] = []
    act(toolkit.rehearsal(calls.append, full))
    return planned(calls)


def planned(calls: Sequence[ApiCall]) -> View:
    """Show recorded calls, each followed by the gcloud command that makes the same call."""
    rows: list[list[object]] = []
    for call in calls:
        rows.append([one_line(f"{call.method} {call.url}")])
        rows += [[line] for line in json.dumps(call.body, indent=2).splitlines() if call.body]
        rows += [[line] for line in quote(gcloud_line(call)).splitlines()]
    documents = [{**call.document(), "gcloud": list(gcloud_line(call))} for call in calls]
    nothing = ["nothing to do: everything that you asked for exists"] if not calls else []
    return View({"dry_run": documents}, rows=rows, warnings=nothing)
