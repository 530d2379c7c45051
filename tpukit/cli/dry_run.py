"""`--dry-run`: the calls that a command would make, and gcloud's commands for them.

A command does what it always does, in a rehearsal: clients read, note what they would write, and go
on as if it was written.
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
    bool, Option("--dry-run", help="Show the calls that would change something; make none.")
]


def rehearse(toolkit: Toolkit, act: Callable[[Toolkit], object], full: int = 0) -> View:
    """Show the calls that `act` would send; the first `full` creates find no room."""
    calls: list[ApiCall] = []
    act(toolkit.rehearsal(calls.append, full))
    return planned(calls)


def planned(calls: Sequence[ApiCall]) -> View:
    """Show calls that were noted and not made, and below each what gcloud would make it with."""
    rows: list[list[object]] = []
    for call in calls:
        rows.append([one_line(f"{call.method} {call.url}")])
        rows += [[line] for line in json.dumps(call.body, indent=2).splitlines() if call.body]
        rows += [[line] for line in quote(gcloud_line(call)).splitlines()]
    documents = [{**call.document(), "gcloud": list(gcloud_line(call))} for call in calls]
    nothing = ["nothing to do: what is asked for is there"] if not calls else []
    return View({"dry_run": documents}, rows=rows, warnings=nothing)
