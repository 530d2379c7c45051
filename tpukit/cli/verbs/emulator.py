"""`tpukit emulator`: start, stop and inspect the local cloud."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from tpukit.cli.local import client, ensure_environment
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.cli.verbs import emulator_control, emulator_fault
from tpukit.console import Console, View
from tpukit.errors import BadInput, Fix
from tpukit.paths import private_directory
from tpukit.text import quote, shown_path

if TYPE_CHECKING:
    from tpukit.emulator.control_client import EmulatorClient
    from tpukit.emulator.process.home import RunningEmulator

Start = Annotated[bool, Option("--start", help="Start the emulator if none runs.")]
Impersonated = Annotated[
    bool, Option("--impersonate", help="For clients that use Google's own host names.")
]
Everything = Annotated[
    bool, Option("--all", help="All emulators of this user, and processes of killed ones.")
]


@dataclass(frozen=True)
class EmulatorFlags:
    """The options of an emulator."""

    create_seconds: Annotated[
        float | None,
        Option(
            metavar="SECONDS",
            min=0.0,
            max=86400.0,
            help="Time from create to READY; default: 2.",
        ),
    ] = None
    port: Annotated[
        int, Option(metavar="PORT", min=0, max=65535, help="Port of the API; 0 takes a free one.")
    ] = 0
    scenario: Annotated[
        str, Option(metavar="FILE", help="Faults for the beginning, .toml or .json.")
    ] = ""
    engine: Annotated[
        str,
        Option(
            metavar="auto|portable|namespaces|machines|paper",
            help="Isolation of workers; namespaces and machines need root on Linux.",
        ),
    ] = "auto"
    operation_metadata: Annotated[
        str,
        Option(
            metavar="common|tpu",
            help="Message type of operations' metadata; google-cloud-tpu over REST needs tpu.",
        ),
    ] = ""
    realistic: Annotated[
        bool, Option("--realistic", help="Let changes take as long as in the real service.")
    ] = False
    grpc_port: Annotated[
        int | None,
        Option(metavar="PORT", min=0, max=65535, help="Serve gRPC too; 0 takes a free port."),
    ] = None
    impersonate: Annotated[
        bool, Option("--impersonate", help="Answer over TLS for Google's own host names too.")
    ] = False


def application() -> typer.Typer:
    control = (emulator_control.preempt, emulator_control.health, emulator_control.state)
    summary = "A Cloud TPU API and firewall API on this machine."
    app = group(
        summary,
        *(start, stop, status, env, hosts, *control, emulator_fault.worker),
        *(emulator_control.log, emulator_control.reset),
        *(emulator_control.add, emulator_control.remove, emulator_control.catalogue),
    )
    app.add_typer(emulator_fault.application(), name="fault")
    app.add_typer(emulator_control.clock_application(), name="clock")
    return app


def start(toolkit: Toolkit, flags: EmulatorFlags) -> View:
    """Start the emulator in the background.

    If it runs already, it stays, and --scenario, --realistic, --grpc-port and --impersonate change
    it. If it differs from the other flags, the command fails.

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
    if flags.engine == "machines":  # takes longer than the limit for starting an emulator
        from tpukit.emulator.workers.engines.machines.root_file_system import ensure_root

        ensure_root(toolkit.paths.machines, toolkit.console.say)
    process = daemon.start(
        directory, port=flags.port, engine=flags.engine, operation_metadata=kind, **given
    )
    emulator = client(toolkit.paths)
    _check_as_asked(process, replace(flags, create_seconds=seconds), emulator.status())
    if flags.realistic:
        emulator.take_realistic_times()
    if flags.grpc_port is not None:
        emulator.open_grpc(flags.grpc_port)
    if flags.impersonate:
        emulator.impersonate()
    if flags.scenario:
        emulator.play(scenario)
    _warn_of_foreign_ssh(toolkit.console, process)
    note = "prints the variables for clients; use it with eval"
    next = [Fix.command("tpukit", "emulator", "env", note=note)]
    if flags.impersonate:
        lines = "prints the lines that /etc/hosts needs, here or in a container"
        next = [
            Fix.command("tpukit", "emulator", "hosts", note=lines),
            Fix.command("tpukit", "emulator", "env", "--impersonate", note=note),
        ]
    return replace(_view(process, emulator), next=tuple(next))


def stop(toolkit: Toolkit, everything: Everything = False) -> View:
    """Stop the emulator and all processes of its workers.

    The next start brings its slices back. With --all, it lists all emulators and asks before it
    stops them. Emulators of running programs and tests are among them, and do not come back.

    Examples:
      tpukit emulator stop
      tpukit emulator stop --all --yes
    """
    from tpukit.emulator.process import daemon

    if everything:
        folders = daemon.all_running(toolkit.paths.emulator)
        for folder in folders:
            toolkit.console.say(f"runs: {shown_path(folder)}")
        if folders:
            toolkit.questions.confirm("stop them and all processes of their workers?")
        stopped_in, left = daemon.stop_all(toolkit.paths.emulator)
        told = f"emulators stopped: {len(stopped_in)}; processes left by others: {left}"
        toolkit.console.say(told)
        return View(
            {"stopped": bool(stopped_in), "emulators": list(map(str, stopped_in)), "left": left}
        )
    stopped = daemon.stop(toolkit.paths.emulator)
    toolkit.console.say("emulator stopped" if stopped else "no emulator was running")
    return View({"stopped": stopped})


def status(toolkit: Toolkit) -> View:
    """Show the addresses of the emulator, and its engine.

    Example:
      tpukit emulator status --json
    """
    from tpukit.emulator.process import daemon

    process = daemon.expected(toolkit.paths.emulator)
    view = _view(process, client(toolkit.paths))
    lacks = [["lacks", limit] for limit in process.limits]
    return replace(view, rows=[*view.rows, ["reason", process.reason], *lacks])


def env(toolkit: Toolkit, start: Start = False, impersonate: Impersonated = False) -> View:
    """Print the variables that let gcloud and tpukit use the emulator.

    With --impersonate, print those for clients that use Google's own host names: the certificates
    to trust and the credentials. Such clients need the lines of `tpukit emulator hosts` too.

    Examples:
      eval "$(tpukit emulator env)"
      eval "$(tpukit emulator env --start)"
      eval "$(tpukit emulator env --impersonate)"
    """
    from tpukit.emulator.process import daemon

    if start:
        ensure_environment(toolkit.paths, toolkit.console)
    if impersonate:
        if start:
            client(toolkit.paths).impersonate()
        variables = daemon.real_name_environment(toolkit.paths.emulator)
    else:
        process = daemon.expected(toolkit.paths.emulator)
        _warn_of_foreign_ssh(toolkit.console, process)
        variables = daemon.environment(toolkit.paths.emulator, process)
    lines = [[f"export {name}={quote([value])}"] for name, value in variables.items()]
    return View({"environment": dict(variables)}, rows=lines)


def hosts(toolkit: Toolkit) -> View:
    """Print the lines for /etc/hosts that lead Google's own host names to the emulator.

    Example:
      tpukit emulator hosts | sudo tee -a /etc/hosts
    """
    from tpukit.emulator.process import daemon

    tls = daemon.impersonation(toolkit.paths.emulator)
    address, names = str(tls["address"]), list(tls["names"])
    lines = [[f"{address} {name}"] for name in names]
    return View({"address": address, "names": names}, rows=lines)


def _check_as_asked(
    process: RunningEmulator, flags: EmulatorFlags, status: Mapping[str, Any]
) -> None:
    """Raise `BadInput` if the running emulator differs from the flags."""
    asked, port = flags.create_seconds, int(process.url.rpartition(":")[2])
    create_seconds, kind = status["create_seconds"], status["operation_metadata"]
    differences = []
    if asked not in (None, create_seconds):
        differences.append(f"a create takes {create_seconds:g} s, not {asked:g} s")
    if flags.operation_metadata not in ("", kind):
        wanted = flags.operation_metadata
        differences.append(f"the metadata of its operations is {kind}, not {wanted}")
    if flags.port not in (0, port):
        differences.append(f"it listens on port {port}, not {flags.port}")
    if flags.engine not in ("auto", process.engine):
        differences.append(f"its workers are {process.engine}, not {flags.engine}")
    if differences:
        note = "the next start brings its slices back"
        raise BadInput(
            "the running emulator differs from the flags",
            why="; ".join(differences),
            fix=Fix.command("tpukit", "emulator", "stop", note=note),
        )


def _scenario(path: str) -> dict[str, Any]:
    """Return the content of a scenario file, so that a bad file fails before the start."""
    if not path:
        return {}
    from tpukit.emulator.faults.scenario import read_scenario

    return read_scenario(Path(path))


def _warn_of_foreign_ssh(console: Console, process: RunningEmulator) -> None:
    if process.foreign_ssh:
        console.warn(
            "this machine's own SSH server answers on port 22 of the workers' addresses: gcloud, "
            "which knows no other port, would offer it your key; tpukit reaches the workers. For "
            "gcloud: --engine namespaces, or ListenAddress in sshd_config(5)"
        )


def _view(process: RunningEmulator, emulator: EmulatorClient) -> View:
    tls = emulator.impersonation()
    fields = {
        "url": process.url,
        **emulator.grpc_addresses(),
        **({"google_names": tls["address"], "authority": tls["authority"]} if tls else {}),
        "engine": process.engine,
        "version": process.version,
        "pid": process.pid,
    }
    more = {
        "started": process.started,
        "reason": process.reason,
        "limits": list(process.limits),
        "foreign_ssh": process.foreign_ssh,
    }
    return View({"emulator": {**fields, **more}}, ("FIELD", "VALUE"), list(fields.items()))
