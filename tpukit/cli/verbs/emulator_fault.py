"""`tpukit emulator fault` and `worker`: faults of the API and of workers, and their counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from typer import Argument, Option

from tpukit.cli.local import client
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

Preset = Annotated[
    str, Argument(metavar="[PRESET]", help="One of `tpukit emulator fault presets`.")
]
SliceName = Annotated[str, Argument(metavar="NAME", help="Name of a slice, or a pattern.")]
Index = Annotated[str, Argument(metavar="WORKER", help="Number of a worker, or all.")]


@dataclass(frozen=True)
class FaultFlags:
    """The failing calls of the API: which, how, and how often."""

    method: Annotated[str, Option(metavar="PATTERN", help="Only these API methods: nodes.*.")] = ""
    name: Annotated[str, Option(metavar="PATTERN", help="Only slices or rules so named.")] = ""
    accelerator_type: Annotated[
        str, Option(metavar="PATTERN", help="Only creates of these accelerator types.")
    ] = ""
    kind: Annotated[
        str,
        Option(
            metavar="KIND",
            help="status, operation, reset, stall, truncate, wait, unreachable or roles.",
        ),
    ] = ""
    phase: Annotated[
        str, Option(metavar="PHASE", help="before or after the emulator carries out the call.")
    ] = ""
    status: Annotated[str, Option(metavar="STATUS", help="Google's status: UNAVAILABLE, …")] = ""
    message: Annotated[str, Option(metavar="TEXT", help="Text of the error.")] = ""
    seconds: Annotated[float, Option(metavar="SECONDS", min=0.0, help="Length of a stall.")] = 0.0
    times: Annotated[
        int, Option(metavar="N", min=0, help="Number of calls; 0: one, or all with --probability.")
    ] = 0
    probability: Annotated[
        float, Option(metavar="P", min=0.0, max=1.0, help="Probability for each call.")
    ] = 1.0
    seed: Annotated[int, Option(metavar="N", help="Seed of the random choice.")] = 0
    permissions: Annotated[
        str, Option(metavar="PATTERN", help="For roles: what callers may not do, tpu.nodes.create.")
    ] = ""


@dataclass(frozen=True)
class WorkerFaultFlags:
    """A worker's fault and its limits."""

    fault: Annotated[
        str,
        Option(
            metavar="KIND",
            help="dead, frozen, refusing, slow, cut, late-key, swapped-host-key, reused-address,"
            " apt-lock, disk-full, hostile-output, missing-device, wrong-device or slow-device.",
        ),
    ] = ""
    seconds: Annotated[
        float, Option(metavar="SECONDS", min=0.0, help="End it after this time; 0: only --clear.")
    ] = 0.0
    times: Annotated[
        int, Option(metavar="N", min=0, help="Number of connections or commands; 0: all.")
    ] = 0
    bytes: Annotated[int, Option(metavar="N", min=0, help="For cut: bytes before the cut.")] = (
        10_000
    )
    rate: Annotated[int, Option(metavar="N", min=1, help="For slow: bytes a second.")] = 10_000
    device: Annotated[
        int, Option(metavar="N", min=0, help="For wrong-device and slow-device: its number.")
    ] = 0
    clear: Annotated[bool, Option("--clear", help="End the faults of these workers.")] = False


def application() -> typer.Typer:
    summary = "Let calls of the API fail, and count the failures."
    return group(summary, add, list_faults, clear, presets)


def add(toolkit: Toolkit, preset: Preset = "", flags: FaultFlags = FaultFlags()) -> View:
    """Make API calls that match the flags fail.

    With the global --zone, only calls in this zone fail.

    Examples:
      tpukit emulator fault add stockout --name demo --times 2
      tpukit emulator fault add --method nodes.get --kind reset --probability 0.2 --seed 7
      tpukit emulator fault add --kind roles --permissions "tpu.nodes.create compute.firewalls.*"
    """
    rule = {"preset": preset, "zone": toolkit.flags.zone, **asdict(flags)}
    if flags.probability == 1.0:
        del rule["probability"]
    given = {key: value for key, value in rule.items() if value}
    return faults(client(toolkit.paths).add_fault(given))


def list_faults(toolkit: Toolkit) -> View:
    """List the active faults, with the number of calls that each has hit.

    Example:
      tpukit emulator fault list --json
    """
    return faults(client(toolkit.paths).faults())


def clear(toolkit: Toolkit) -> View:
    """End all faults of the API and of workers, and the events of scenarios, and list them.

    Example:
      tpukit emulator fault clear
    """
    return faults(client(toolkit.paths).clear_faults())


def presets(toolkit: Toolkit) -> View:
    """List the named refusals of the real service.

    Example:
      tpukit emulator fault presets
    """
    from tpukit.emulator.faults.presets import PRESETS

    rows = [
        (name, preset.method, preset.kind, preset.status.status, preset.status.message)
        for name, preset in PRESETS.items()
    ]
    keys = ("name", "method", "kind", "status", "message")
    document = {"presets": [dict(zip(keys, row, strict=True)) for row in rows]}
    return View(document, tuple(key.upper() for key in keys), rows)


def worker(
    toolkit: Toolkit,
    name: SliceName,
    index: Index = "all",
    flags: WorkerFaultFlags = WorkerFaultFlags(),
) -> View:
    """Give workers a fault, or end their faults with --clear.

    Examples:
      tpukit emulator worker demo 1 --fault frozen --seconds 30
      tpukit emulator worker demo all --clear
    """
    if index != "all" and not (index.isascii() and index.isdecimal()):
        raise BadInput(
            f"{one_line(index)!r} is not the number of a worker", fix=Fix(note="0, 1, … or all")
        )
    number = None if index == "all" else int(index)
    if flags.clear == bool(flags.fault):
        fix = Fix.command("tpukit", "emulator", "worker", name, index, "--clear")
        raise BadInput("either --fault or --clear", fix=fix)
    if flags.clear:
        return faults(client(toolkit.paths).clear_worker_faults(name, number))
    device = {"device": flags.device}
    limits = {
        "cut": {"bytes": flags.bytes},
        "slow": {"rate": flags.rate},
        "wrong-device": device,
        "slow-device": device,
    }.get(flags.fault, {})
    given = {key: value for key in ("seconds", "times") if (value := getattr(flags, key))}
    rule = {"node": name, "worker": number, "fault": flags.fault, **limits, **given}
    return faults(client(toolkit.paths).add_worker_fault(rule))


def faults(document: Mapping[str, Any]) -> View:
    """Show all faults and events with their counts as one table."""
    api = [("api", rule, rule["method"], rule["name"], rule["kind"]) for rule in document["faults"]]
    workers = [
        ("worker", rule, rule["fault"], rule["node"], _workers(rule["worker"]))
        for rule in document["workers"]
    ]
    events = [
        ("event", rule, rule["do"], rule["node"], f"after {rule['after']:g}s")
        for rule in document["events"]
    ]
    rows = [
        [
            *(where, what, name, how, "" if rule["times"] is None else rule["times"]),
            *(rule["served"], rule.get("zone", ""), rule.get("accelerator_type", "")),
        ]
        for where, rule, what, name, how in (*api, *workers, *events)
    ]
    columns = ("WHERE", "WHAT", "NAME", "HOW", "TIMES", "SERVED", "ZONE", "TYPE")
    return View({key: document[key] for key in ("faults", "workers", "events")}, columns, rows)


def _workers(index: int | None) -> str:
    return "all workers" if index is None else f"worker {index}"
