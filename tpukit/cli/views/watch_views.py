"""Watches as tables and documents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpukit.console import View
from tpukit.errors import Fix

if TYPE_CHECKING:
    from tpukit.recovery.watch_file import Watch


def watches(found: Sequence[tuple[Watch, int | None]], *, with_history: bool) -> View:
    """Show watches, one a row, and the process at each; or what one has been through."""
    idle = [watch for watch, process in found if watch.open and process is None]
    documents = [{**watch.document(), "process": process} for watch, process in found]
    for document, (watch, _) in zip(documents, found, strict=True):
        document["state"] = "not running" if watch in idle else document["state"]
    again = [Fix.command("tpukit", "watch", each.name, "--zone", each.zone) for each in idle]
    if with_history:
        rows = [
            [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(each.time)), each.event, each.detail]
            for watch, _ in found
            for each in watch.history
        ]
        return View({"watches": documents}, ("TIME", "EVENT", "DETAIL"), rows, next=again)
    columns = ("NAME", "ZONE", "STATE", "PROCESS", "RUN", "RECOVERIES", "STATUS", "LAST")
    rows = [
        [
            *(each["name"], each["zone"], each["state"], each["process"] or "", each["run"]),
            *(each["recoveries"], "" if each["status"] is None else each["status"]),
            each["history"][-1]["event"] if each["history"] else "",
        ]
        for each in documents
    ]
    return View({"watches": documents}, columns, rows, next=again)
