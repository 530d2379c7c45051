"""`tpukit emulator`: start, stop and look at the local cloud; its faults are in files beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from tpukit.cli import emulator_control, emulator_fault
from tpukit.cli.local import client, ensure_environment, running
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.paths import private_directory
from tpukit.text import quote

if TYPE_CHECKING:
    from tpukit.emulator.process.daemon import RunningEmulator

Start = Annotated[bool, Option("--start", help="Start the emulator if none runs.")]
Everything = Annotated[
    bool, Option("--all", help="Every emulator of this user, and what killed ones left.")
]


@dataclass(frozen=True)
class EmulatorFlags:
    """How the emulator is to run."""

    create_seconds: Annotated[
        float | None,
        Option(metavar="SECONDS", min=0.0, max=86400.0, help="From create to READY; default: 2."),
    ] = None
    port: Annotated[
        int, Option(metavar="PORT", min=0, max=65535, help="Of the API; 0 takes a free one.")
    ] = 0
    scenario: Annotated[
        str, Option(metavar="FILE", help="Faults to begin with: .toml or .json.")
    ] = ""
    engine: Annotated[
        str,
        Option(
            metavar="auto|portable|namespaces",
            help="What workers are made of; namespaces needs root on Linux.",
        ),
    ] = "auto"
    realistic: Annotated[
        bool, Option("--realistic", help="Changes take as long as on the real service.")
    ] = False
    grpc_port: Annotated[
        int | None,
        Option(metavar="PORT", min=0, max=65535, help="Serve gRPC too; 0 takes a free port."),
    ] = None


def application() -> typer.Typer:
    control = (emulator_control.preempt, emulator_control.health, emulator_fault.worker)
    summary = "A Cloud TPU API and firewall API on this machine."
    app = group(summary, start, stop, status, env, *control, emulator_control.log)
    app.add_typer(emulator_fault.application(), name="fault")
    app.add_typer(emulator_control.clock_application(), name="clock")
    return app


def start(toolkit: Toolkit, flags: EmulatorFlags) -> View:
    """Start the emulator in the background.

    One that runs already stays, and gets what --scenario, --realistic and --grpc-port add. Where it
    differs from the other flags, this is refused.

    Examples:
      tpukit emulator start --create-seconds 2
      tpukit emulator start --scenario stockout-then-preempt.toml
      tpukit emulator start --realistic --grpc-port 0
    """
    from tpukit.emulator.process import daemon

    scenario = _scenario(flags.scenario)
    seconds = scenario.pop("create_seconds", None)
    if flags.create_seconds is not None:
        seconds = flags.create_seconds
    if flags.realistic and seconds is not None:
        raise BadInput(
            "either --realistic or a number of seconds for a create", fix=Fix(note="leave one out")
        )
    if seconds is not None and not isfinite(seconds):
        raise BadInput(
            f"{seconds} is not a number of seconds", fix=Fix(note="for example: --create-seconds 2")
        )
    directory = private_directory(toolkit.paths.emulator)
    given = {} if seconds is None else {"create_seconds": float(seconds)}
    found = daemon.start(directory, port=flags.port, engine=flags.engine, **given)
    emulator = client(toolkit.paths)
    asked = replace(flags, create_seconds=seconds)
    _check_as_asked(found, asked, emulator.status()["create_seconds"])
    if flags.realistic:
        emulator.take_realistic_times()
    if flags.grpc_port is not None:
        emulator.open_grpc(flags.grpc_port)
    if flags.scenario:
        emulator.play(scenario)
    _warn_of_foreign_ssh(toolkit, found)
    note = "prints for eval what points clients here"
    variables = Fix.command("tpukit", "emulator", "env", note=note)
    return replace(_view(found, emulator.grpc_addresses()), next=(variables,))


def stop(toolkit: Toolkit, everything: Everything = False) -> View:
    """Stop the emulator and all that its workers run.

    Its slices are there again after the next start.

    Examples:
      tpukit emulator stop
      tpukit emulator stop --all
    """
    from tpukit.emulator.process import daemon

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
    found = running(toolkit.paths)
    view = _view(found, client(toolkit.paths).grpc_addresses())
    lacks = [["lacks", each] for each in found.limits]
    return replace(view, rows=[*view.rows, ["reason", found.reason], *lacks])


def env(toolkit: Toolkit, start: Start = False) -> View:
    """Print the variables that point gcloud and tpukit at it.

    Examples:
      eval "$(tpukit emulator env)"
      eval "$(tpukit emulator env --start)"
    """
    from tpukit.emulator.process import daemon

    if start:
        variables = dict(ensure_environment(toolkit.paths, toolkit.console))
    else:
        running(toolkit.paths)
        variables = daemon.environment(toolkit.paths.emulator)
    lines = [[f"export {name}={quote([value])}"] for name, value in variables.items()]
    return View({"environment": dict(variables)}, rows=lines)


def _check_as_asked(found: RunningEmulator, flags: EmulatorFlags, create_seconds: float) -> None:
    """Raise `BadInput` where the emulator that runs is not the one that was asked for."""
    asked, port = flags.create_seconds, int(found.url.rpartition(":")[2])
    differences = []
    if asked not in (None, create_seconds):
        differences.append(f"a create takes {create_seconds:g} s, not {asked:g} s")
    if flags.port not in (0, port):
        differences.append(f"it listens on port {port}, not {flags.port}")
    if flags.engine not in ("auto", found.engine):
        differences.append(f"its workers are {found.engine}, not {flags.engine}")
    if differences:
        note = "its slices are there again after the next start"
        raise BadInput(
            "the emulator that runs is not the one that is asked for",
            why="; ".join(differences),
            fix=Fix.command("tpukit", "emulator", "stop", note=note),
        )


def _scenario(path: str) -> dict[str, Any]:
    """Return what a scenario file holds, before anything is started for it."""
    if not path:
        return {}
    from tpukit.emulator.faults.scenario import read_scenario

    return read_scenario(Path(path))


def _warn_of_foreign_ssh(toolkit: Toolkit, found: RunningEmulator) -> None:
    if found.foreign_ssh:
        toolkit.console.warn(
            "this machine's own SSH server answers on port 22 of the workers' addresses: gcloud, "
            "which knows no other port, would offer it your key; tpukit reaches the workers. For "
            "gcloud: --engine namespaces, or ListenAddress in sshd_config(5)"
        )


def _view(found: RunningEmulator, grpc: Mapping[str, str]) -> View:
    fields = {
        "url": found.url,
        **grpc,
        "engine": found.engine,
        "version": found.version,
        "pid": found.pid,
    }
    more = {
        "started": found.started,
        "reason": found.reason,
        "limits": list(found.limits),
        "foreign_ssh": found.foreign_ssh,
    }
    return View({"emulator": {**fields, **more}}, ("FIELD", "VALUE"), list(fields.items()))
