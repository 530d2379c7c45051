"""`--dry-run`: the calls that a command would make, and gcloud's commands for them.

A command does what it always does with clients that are `planning`: these read, and note what they
would write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

from typer import Option

from tpukit.cli.gcloud_line import gcloud_line
from tpukit.console import View
from tpukit.models import ApiCall
from tpukit.text import one_line, quote

DryRun = Annotated[
    bool, Option("--dry-run", help="Show the calls that would change something; make none.")
]


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
