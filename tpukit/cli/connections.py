"""`tpukit connections`: the connection pool, which outlives commands."""

from __future__ import annotations

import typer

from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.console import View

_COLUMNS = ("WORKER", "ADDRESS", "PORT", "USER", "IDLE")


def application() -> typer.Typer:
    return group(
        "Show and end the connections that run --keep leaves open.", list_connections, stop
    )


def list_connections(toolkit: Toolkit) -> View:
    """List the connections that are kept for the next run --keep.

    A background process of yours keeps them, and ends when nobody has used one for ten minutes.

    Example:
      tpukit connections list
    """
    from tpukit.remote.persistent import pool_client

    found = pool_client.overview(toolkit.connection_pool) or {"connections": []}
    rows = [
        [
            each["label"],
            each["address"],
            each["port"],
            each["user"],
            "busy" if each["busy"] else f"{each['idle_seconds']:.0f}s",
        ]
        for each in found["connections"]
    ]
    document = {"connections": found["connections"], "process": found.get("process")}
    return View(document, _COLUMNS, rows)


def stop(toolkit: Toolkit) -> View:
    """Close every connection that is kept.

    The process that keeps them ends too. A command that runs over one of them is lost, and may go
    on on its worker.

    Example:
      tpukit connections stop
    """
    from tpukit.remote.persistent import pool_client

    stopped = pool_client.stop(toolkit.connection_pool)
    toolkit.console.say("stopped" if stopped else "no connections are kept")
    return View({"stopped": stopped})
