"""Watches as tables and documents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpukit.console import View
from tpukit.errors import Fix

if TYPE_CHECKING:
    from tpukit.watch.saved_watches import Watch


def watches(listed: Sequence[tuple[Watch, int | None]], *, with_history: bool) -> View:
    """Show watches with their processes, one in a row, or their events if `with_history`."""
    idle = [watch for watch, process in listed if watch.open and process is None]
    documents = [{**watch.document(), "process": process} for watch, process in listed]
    for document, (watch, _) in zip(documents, listed, strict=True):
        document["state"] = "not running" if watch in idle else document["state"]
    again = [Fix.command("tpukit", "watch", watch.name, "--zone", watch.zone) for watch in idle]
    if with_history:
        rows = [
            [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(step.time)), step.event, step.detail]
            for watch, _ in listed
            for step in watch.history
        ]
        return View({"watches": documents}, ("TIME", "EVENT", "DETAIL"), rows, next=again)
    columns = ("NAME", "ZONE", "STATE", "PROCESS", "RUN", "RECOVERIES", "STATUS", "LAST")
    rows = [
        [
            *(watch["name"], watch["zone"], watch["state"], watch["process"] or "", watch["run"]),
            *(watch["recoveries"], "" if watch["status"] is None else watch["status"]),
            watch["history"][-1]["event"] if watch["history"] else "",
        ]
        for watch in documents
    ]
    spare = ("RECOVERIES", "STATUS", "RUN", "ZONE")
    return View({"watches": documents}, columns, rows, next=again, spare=spare)
