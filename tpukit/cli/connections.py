"""`tpukit connections`: what is kept open between commands."""

from __future__ import annotations

import typer

from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import verb
from tpukit.console import View

_COLUMNS = ("WORKER", "ADDRESS", "PORT", "USER", "IDLE")


def application() -> typer.Typer:
    app = typer.Typer(help="Show and end the connections that run --keep leaves open.")
    for function in (list_connections, stop):
        app.command(function.__name__.partition("_")[0])(verb(function))
    return app


def list_connections(toolkit: Toolkit) -> View:
    """List the connections that are kept for the next run --keep.

    A background process of yours keeps them, and ends when nobody has used one for ten minutes.

    Example:
      tpukit connections list
    """
    from tpukit.remote import kept

    found = kept.overview(toolkit.keeper) or {"connections": []}
    rows = [
        [
            each["label"],
            each["address"],
            str(each["port"]),
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
    from tpukit.remote import kept

    stopped = kept.stop(toolkit.keeper)
    toolkit.console.say("stopped" if stopped else "no connections are kept")
    return View({"stopped": stopped})
