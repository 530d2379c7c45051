"""`tpukit emulator`: start, stop and look at the local cloud."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import verb
from tpukit.console import Console, View
from tpukit.errors import NotFound
from tpukit.paths import Paths, private_directory
from tpukit.text import quote

if TYPE_CHECKING:
    from tpukit.emulator.daemon import Running

CreateSeconds = Annotated[
    float, typer.Option(min=0.0, max=86400.0, help="Seconds from create to READY.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")]


def application() -> typer.Typer:
    app = typer.Typer(
        help="A Cloud TPU API and firewall API on this machine."
    )
    for function in (start, stop, status, env):
        app.command(function.__name__)(verb(function))
    return app


def ensure_environment(paths: Paths, console: Console) -> Mapping[str, str]:
    """Return the variables that point clients at the emulator; start it where none runs."""
    from tpukit.emulator import daemon

    directory = private_directory(paths.emulator)
    if daemon.running(directory) is None:
        daemon.start(directory)
        console.say("emulator started   (stop it: tpukit emulator stop)")
    return daemon.environment(directory)


def start(toolkit: Toolkit, create_seconds: CreateSeconds = 2.0, port: Port = 0) -> View:
    """Start the emulator in the background; one that already runs is left alone.

    Example:
      tpukit emulator start --create-seconds 2
    """
    from tpukit.emulator import daemon

    directory = private_directory(toolkit.paths.emulator)
    running = daemon.start(directory, create_seconds=create_seconds, port=port)
    return _view(running, hint='eval "$(tpukit emulator env)"')


def stop(toolkit: Toolkit) -> View:
    """Stop the emulator and every process of its workers; slices are there again after a start.

    Example:
      tpukit emulator stop
    """
    from tpukit.emulator import daemon

    stopped = daemon.stop(toolkit.paths.emulator)
    toolkit.console.say("emulator stopped" if stopped else "no emulator was running")
    return View({"stopped": stopped})


def status(toolkit: Toolkit) -> View:
    """Show where the emulator listens, and what its workers are made of.

    Example:
      tpukit emulator status --json
    """
    return _view(_running(toolkit))


def env(toolkit: Toolkit) -> View:
    """Print the variables that point gcloud and tpukit at the emulator.

    Example:
      eval "$(tpukit emulator env)"
    """
    from tpukit.emulator import daemon

    _running(toolkit)
    variables = daemon.environment(toolkit.paths.emulator)
    lines = [[f"export {name}={quote([value])}"] for name, value in variables.items()]
    return View({"environment": dict(variables)}, rows=lines)


def _running(toolkit: Toolkit) -> Running:
    from tpukit.emulator import daemon

    running = daemon.running(toolkit.paths.emulator)
    if running is None:
        raise NotFound("no emulator is running", fix="tpukit emulator start")
    return running


def _view(running: Running, hint: str = "") -> View:
    fields = {
        "url": running.url,
        "engine": running.engine,
        "version": running.version,
        "pid": str(running.pid),
    }
    document = {"emulator": {**fields, "pid": running.pid, "started": running.started}}
    return View(document, ("FIELD", "VALUE"), [list(item) for item in fields.items()], hint=hint)
