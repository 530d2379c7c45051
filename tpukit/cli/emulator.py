"""`tpukit emulator`: start, stop and look at the local cloud; its faults are in files beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpukit.cli import emulator_fault, emulator_world
from tpukit.cli.emulator_client import client, running
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import verb
from tpukit.console import Console, View
from tpukit.errors import BadInput
from tpukit.paths import Paths, private_directory
from tpukit.text import quote

if TYPE_CHECKING:
    from tpukit.emulator.daemon import Running

CreateSeconds = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.0, max=86400.0, help="From create to READY; default: 2."),
]
ScenarioFile = Annotated[
    str, typer.Option("--scenario", metavar="FILE", help="Faults to begin with: .toml or .json.")
]
Start = Annotated[bool, typer.Option("--start", help="Start the emulator if none runs.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="auto|portable|namespaces",
        help="What workers are made of; namespaces needs root on Linux.",
    ),
]
Everything = Annotated[
    bool, typer.Option("--all", help="Every emulator of this user, and what killed ones left.")
]
Realistic = Annotated[
    bool, typer.Option("--realistic", help="Changes take as long as on the real service.")
]
GrpcPort = Annotated[
    int | None,
    typer.Option(metavar="PORT", min=0, max=65535, help="Serve gRPC too; 0 takes a free port."),
]
Port = Annotated[
    int,
    typer.Option(metavar="PORT", min=0, max=65535, help="Of the API; 0 takes a free one."),
]


def application() -> typer.Typer:
    app = typer.Typer(help="A Cloud TPU API and firewall API on this machine.")
    for function in (start, stop, status, env):
        app.command(function.__name__)(verb(function))
    app.command("preempt")(verb(emulator_world.preempt))
    app.command("health")(verb(emulator_world.health))
    app.command("worker")(verb(emulator_fault.worker))
    app.command("log")(verb(emulator_world.log))
    app.add_typer(emulator_fault.application(), name="fault")
    app.add_typer(emulator_world.clock_application(), name="clock")
    return app


def ensure_environment(paths: Paths, console: Console) -> Mapping[str, str]:
    """Return the variables that point clients at the emulator; start it where none runs."""
    from tpukit.emulator import daemon

    directory = private_directory(paths.emulator)
    if daemon.running(directory) is None:
        daemon.start(directory)
        console.say("emulator started   (stop it: tpukit emulator stop)")
    return daemon.environment(directory)


def start(
    toolkit: Toolkit,
    create_seconds: CreateSeconds = None,
    port: Port = 0,
    scenario: ScenarioFile = "",
    engine: EngineName = "auto",
    realistic: Realistic = False,
    grpc_port: GrpcPort = None,
) -> View:
    """Start the emulator in the background.

    One that runs already stays, and gets what --scenario, --realistic and --grpc-port add. Where it
    differs from the other flags, this is refused.

    Examples:
      tpukit emulator start --create-seconds 2
      tpukit emulator start --scenario stockout-then-preempt.toml
      tpukit emulator start --realistic --grpc-port 0
    """
    from tpukit.emulator import daemon

    story = _story(scenario)
    told = story.pop("create_seconds", None)
    wanted = told if create_seconds is None else create_seconds
    if realistic and wanted is not None:
        raise BadInput(
            "either --realistic or a number of seconds for a create", fix="leave one out"
        )
    if wanted is not None and not isfinite(wanted):
        raise BadInput(f"{wanted} is not a number of seconds", fix="--create-seconds 2")
    directory = private_directory(toolkit.paths.emulator)
    seconds = {} if wanted is None else {"create_seconds": float(wanted)}
    found = daemon.start(directory, port=port, engine=engine, **seconds)
    _check_as_asked(found, client(toolkit).status(), {**seconds, "port": port, "engine": engine})
    if realistic:
        client(toolkit).take_realistic_times()
    if grpc_port is not None:
        client(toolkit).open_grpc(grpc_port)
    if scenario:
        client(toolkit).play(story)
    return _view(found, client(toolkit).doors(), hint='eval "$(tpukit emulator env)"')


def stop(toolkit: Toolkit, everything: Everything = False) -> View:
    """Stop the emulator and all that its workers run.

    Its slices are there again after the next start.

    Examples:
      tpukit emulator stop
      tpukit emulator stop --all
    """
    from tpukit.emulator import daemon

    if everything:
        places, left = daemon.stop_all(toolkit.paths.emulator)
        toolkit.console.say(f"emulators stopped: {len(places)}; processes left by others: {left}")
        return View({"stopped": bool(places), "emulators": [str(p) for p in places], "left": left})
    stopped = daemon.stop(toolkit.paths.emulator)
    toolkit.console.say("emulator stopped" if stopped else "no emulator was running")
    return View({"stopped": stopped})


def status(toolkit: Toolkit) -> View:
    """Show where the emulator listens, and its engine.

    Example:
      tpukit emulator status --json
    """
    found = running(toolkit)
    view = _view(found, client(toolkit).doors())
    lacks = [["lacks", each] for each in found.limits]
    return replace(view, rows=[*view.rows, ["reason", found.reason], *lacks])


def env(toolkit: Toolkit, start: Start = False) -> View:
    """Print the variables that point gcloud and tpukit at it.

    Examples:
      eval "$(tpukit emulator env)"
      eval "$(tpukit emulator env --start)"
    """
    from tpukit.emulator import daemon

    if start:
        variables = dict(ensure_environment(toolkit.paths, toolkit.console))
    else:
        running(toolkit)
        variables = daemon.environment(toolkit.paths.emulator)
    lines = [[f"export {name}={quote([value])}"] for name, value in variables.items()]
    return View({"environment": dict(variables)}, rows=lines)


def _check_as_asked(found: Running, status: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise `BadInput` where the emulator that runs is not the one that was asked for."""
    takes, port = status["create_seconds"], int(found.url.rpartition(":")[2])
    differences = []
    if asked.get("create_seconds", takes) != takes:
        differences.append(f"a create takes {takes:g} s, not {asked['create_seconds']:g} s")
    if asked["port"] not in (0, port):
        differences.append(f"it listens on port {port}, not {asked['port']}")
    if asked["engine"] not in ("auto", found.engine):
        differences.append(f"its workers are {found.engine}, not {asked['engine']}")
    if differences:
        raise BadInput(
            "the emulator that runs is not the one that is asked for",
            why="; ".join(differences),
            fix="tpukit emulator stop   (its slices are there again after the next start)",
        )


def _story(scenario: str) -> dict[str, Any]:
    """Return what a scenario file holds, before anything is started for it."""
    if not scenario:
        return {}
    from tpukit.emulator.scenario_file import read_scenario

    return read_scenario(Path(scenario))


def _view(found: Running, doors: Mapping[str, str], hint: str = "") -> View:
    fields = {
        "url": found.url,
        **doors,
        "engine": found.engine,
        "version": found.version,
        "pid": str(found.pid),
    }
    more = {"reason": found.reason, "limits": list(found.limits)}
    document = {"emulator": {**fields, "pid": found.pid, "started": found.started, **more}}
    return View(document, ("FIELD", "VALUE"), [list(item) for item in fields.items()], hint=hint)
