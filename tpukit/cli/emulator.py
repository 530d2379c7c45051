"""`tpukit emulator`: start, stop and look at the local cloud; its faults are in files beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from tpukit.cli import emulator_catalogue, emulator_control, emulator_fault
from tpukit.cli.local import client, ensure_environment, running
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.paths import private_directory
from tpukit.text import quote, shown_path

if TYPE_CHECKING:
    from tpukit.emulator.control_client import EmulatorClient
    from tpukit.emulator.process.daemon import RunningEmulator

Start = Annotated[bool, Option("--start", help="Start the emulator if none runs.")]
Impersonated = Annotated[
    bool, Option("--impersonate", help="For clients that call it by Google's own names.")
]
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
            metavar="auto|portable|namespaces|machines|paper",
            help="What workers are made of; namespaces and machines need root on Linux.",
        ),
    ] = "auto"
    operation_metadata: Annotated[
        str,
        Option(
            metavar="common|tpu",
            help="Message type of an operation's metadata; google-cloud-tpu over REST needs tpu.",
        ),
    ] = ""
    realistic: Annotated[
        bool, Option("--realistic", help="Changes take as long as on the real service.")
    ] = False
    grpc_port: Annotated[
        int | None,
        Option(metavar="PORT", min=0, max=65535, help="Serve gRPC too; 0 takes a free port."),
    ] = None
    impersonate: Annotated[
        bool, Option("--impersonate", help="Answer over TLS by Google's own names too.")
    ] = False


def application() -> typer.Typer:
    control = (emulator_control.preempt, emulator_control.health, emulator_control.state)
    summary = "A Cloud TPU API and firewall API on this machine."
    app = group(
        summary,
        *(start, stop, status, env, hosts, *control, emulator_fault.worker),
        *(emulator_control.log, emulator_control.reset),
        *(emulator_catalogue.add, emulator_catalogue.remove, emulator_catalogue.catalogue),
    )
    app.add_typer(emulator_fault.application(), name="fault")
    app.add_typer(emulator_control.clock_application(), name="clock")
    return app


def start(toolkit: Toolkit, flags: EmulatorFlags) -> View:
    """Start the emulator in the background.

    One that runs already stays, and gets what --scenario, --realistic, --grpc-port and
    --impersonate add. Where it differs from the other flags, this is refused.

    Examples:
      tpukit emulator start --create-seconds 2
      tpukit emulator start --scenario stockout-then-preempt.toml
      tpukit emulator start --realistic --grpc-port 0
      tpukit emulator start --impersonate
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
    given: dict[str, Any] = {} if seconds is None else {"create_seconds": float(seconds)}
    kind = flags.operation_metadata
    if flags.engine == "machines":  # it takes longer than an emulator may take to start
        from tpukit.emulator.workers.engines.machines.root_file_system import ensure_root

        ensure_root(toolkit.paths.machines, toolkit.console.say)
    found = daemon.start(
        directory, port=flags.port, engine=flags.engine, operation_metadata=kind, **given
    )
    emulator = client(toolkit.paths)
    _check_as_asked(found, replace(flags, create_seconds=seconds), emulator.status())
    if flags.realistic:
        emulator.take_realistic_times()
    if flags.grpc_port is not None:
        emulator.open_grpc(flags.grpc_port)
    if flags.impersonate:
        emulator.impersonate()
    if flags.scenario:
        emulator.play(scenario)
    _warn_of_foreign_ssh(toolkit, found)
    note = "prints for eval what points clients here"
    ways = [Fix.command("tpukit", "emulator", "env", note=note)]
    if flags.impersonate:
        lines = "prints the lines that /etc/hosts needs, here or in a container"
        ways = [
            Fix.command("tpukit", "emulator", "hosts", note=lines),
            Fix.command("tpukit", "emulator", "env", "--impersonate", note=note),
        ]
    return replace(_view(found, emulator), next=tuple(ways))


def stop(toolkit: Toolkit, everything: Everything = False) -> View:
    """Stop the emulator and all that its workers run.

    Its slices are there again after the next start. With --all it lists the emulators and asks;
    those of running programs and tests are among them, and end for good.

    Examples:
      tpukit emulator stop
      tpukit emulator stop --all --yes
    """
    from tpukit.emulator.process import daemon

    if everything:
        found = daemon.all_running(toolkit.paths.emulator)
        for place in found:
            toolkit.console.say(f"runs: {shown_path(place)}")
        if found:
            toolkit.confirm("stop them and all that their workers run?")
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
    view = _view(found, client(toolkit.paths))
    lacks = [["lacks", each] for each in found.limits]
    return replace(view, rows=[*view.rows, ["reason", found.reason], *lacks])


def env(toolkit: Toolkit, start: Start = False, impersonate: Impersonated = False) -> View:
    """Print the variables that point gcloud and tpukit at it.

    With --impersonate, those for clients that call it by Google's own names: the certificates to
    trust and the credentials. They need the lines of `tpukit emulator hosts` too.

    Examples:
      eval "$(tpukit emulator env)"
      eval "$(tpukit emulator env --start)"
      eval "$(tpukit emulator env --impersonate)"
    """
    from tpukit.emulator.process import daemon

    if impersonate:
        if start:
            ensure_environment(toolkit.paths, toolkit.console)
            client(toolkit.paths).impersonate()
        running(toolkit.paths)
        variables = daemon.real_name_environment(toolkit.paths.emulator)
    else:
        if start:
            ensure_environment(toolkit.paths, toolkit.console)
        found = running(toolkit.paths)
        _warn_of_foreign_ssh(toolkit, found)
        variables = daemon.environment(toolkit.paths.emulator, found)
    lines = [[f"export {name}={quote([value])}"] for name, value in variables.items()]
    return View({"environment": dict(variables)}, rows=lines)


def hosts(toolkit: Toolkit) -> View:
    """Print the lines of /etc/hosts that lead Google's own names to it.

    Example:
      tpukit emulator hosts | sudo tee -a /etc/hosts
    """
    from tpukit.emulator.process import daemon

    running(toolkit.paths)
    found = daemon.impersonation(toolkit.paths.emulator)
    address, names = str(found["address"]), list(found["names"])
    lines = [[f"{address} {name}"] for name in names]
    return View({"address": address, "names": names}, rows=lines)


def _check_as_asked(
    found: RunningEmulator, flags: EmulatorFlags, status: Mapping[str, Any]
) -> None:
    """Raise `BadInput` if the emulator that runs is not the one that was asked for."""
    asked, port = flags.create_seconds, int(found.url.rpartition(":")[2])
    create_seconds, kind = status["create_seconds"], status["operation_metadata"]
    differences = []
    if asked not in (None, create_seconds):
        differences.append(f"a create takes {create_seconds:g} s, not {asked:g} s")
    if flags.operation_metadata not in ("", kind):
        wanted = flags.operation_metadata
        differences.append(f"the metadata of its operations is {kind}, not {wanted}")
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


def _view(found: RunningEmulator, emulator: EmulatorClient) -> View:
    tls = emulator.impersonation()
    fields = {
        "url": found.url,
        **emulator.grpc_addresses(),
        **({"google_names": tls["address"], "authority": tls["authority"]} if tls else {}),
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
