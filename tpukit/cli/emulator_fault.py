"""`tpukit emulator fault` and `worker`: what is to go wrong, and what did."""

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
    """Which calls of the API go wrong, how, and how often."""

    method: Annotated[str, Option(metavar="PATTERN", help="Of API methods: nodes.*.")] = ""
    name: Annotated[str, Option(metavar="PATTERN", help="Of the slice or rule it is about.")] = ""
    accelerator_type: Annotated[str, Option(metavar="PATTERN", help="Strikes creates alone.")] = ""
    kind: Annotated[
        str,
        Option(
            metavar="KIND",
            help="status, operation, reset, stall, truncate, wait or unreachable.",
        ),
    ] = ""
    phase: Annotated[
        str, Option(metavar="PHASE", help="before or after the call is carried out.")
    ] = ""
    status: Annotated[str, Option(metavar="STATUS", help="Google's name: UNAVAILABLE, …")] = ""
    message: Annotated[str, Option(metavar="TEXT", help="Text of the error.")] = ""
    seconds: Annotated[float, Option(metavar="SECONDS", min=0.0, help="Length of a stall.")] = 0.0
    times: Annotated[
        int, Option(metavar="N", min=0, help="How often; 0: once, or always with odds.")
    ] = 0
    probability: Annotated[
        float, Option(metavar="P", min=0.0, max=1.0, help="Odds of each call.")
    ] = 1.0
    seed: Annotated[int, Option(metavar="N", help="Seed of the odds.")] = 0


@dataclass(frozen=True)
class WorkerFaultFlags:
    """What a worker's fault is, and how far it goes."""

    fault: Annotated[
        str,
        Option(
            metavar="KIND",
            help="dead, frozen, refusing, slow, cut, late-key, swapped-host-key, reused-address,"
            " apt-lock, disk-full, hostile-output, missing-device, wrong-device or slow-device.",
        ),
    ] = ""
    seconds: Annotated[float, Option(metavar="SECONDS", min=0.0, help="0: until cleared.")] = 0.0
    times: Annotated[int, Option(metavar="N", min=0, help="Connections or commands; 0: all.")] = 0
    bytes: Annotated[int, Option(metavar="N", min=0, help="For cut: how many come through.")] = (
        10_000
    )
    rate: Annotated[int, Option(metavar="N", min=1, help="For slow: bytes a second.")] = 10_000
    device: Annotated[
        int, Option(metavar="N", min=0, help="For wrong-device and slow-device: which.")
    ] = 0
    clear: Annotated[bool, Option("--clear", help="End the faults of these workers.")] = False


def application() -> typer.Typer:
    summary = "Let calls of the API go wrong, and count those that did."
    return group(summary, add, list_faults, clear, presets)


def add(toolkit: Toolkit, preset: Preset = "", flags: FaultFlags = FaultFlags()) -> View:
    """Spoil calls of the API that fit.

    With the global --zone, calls in that zone alone.

    Examples:
      tpukit emulator fault add stockout --name demo --times 2
      tpukit emulator fault add --method nodes.get --kind reset --probability 0.2 --seed 7
    """
    rule = {"preset": preset, "zone": toolkit.flags.zone, **asdict(flags)}
    if flags.probability == 1.0:
        del rule["probability"]
    given = {key: value for key, value in rule.items() if value}
    return faults(client(toolkit.paths).add_fault(given))


def list_faults(toolkit: Toolkit) -> View:
    """List the faults in force, and how often each was served.

    Example:
      tpukit emulator fault list --json
    """
    return faults(client(toolkit.paths).faults())


def clear(toolkit: Toolkit) -> View:
    """End every fault and print the last account.

    Those of workers and the events of scenarios too.

    Example:
      tpukit emulator fault clear
    """
    return faults(client(toolkit.paths).clear_faults())


def presets(toolkit: Toolkit) -> View:
    """List the refusals of the service known by name.

    Example:
      tpukit emulator fault presets
    """
    from tpukit.emulator.faults.presets import PRESETS

    rows = [
        (name, each.method, each.kind, each.status.status, each.status.message)
        for name, each in PRESETS.items()
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
    """Inflict a fault on workers, or end it with --clear.

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
    """Show every rule with what it struck, as one table."""
    api = [("api", each, each["method"], each["name"], each["kind"]) for each in document["faults"]]
    workers = [
        ("worker", each, each["fault"], each["node"], _workers(each["worker"]))
        for each in document["workers"]
    ]
    events = [
        ("event", each, each["do"], each["node"], f"after {each['after']:g}s")
        for each in document["events"]
    ]
    rows = [
        [
            *(where, what, name, how, "" if each["times"] is None else each["times"]),
            *(each["served"], each.get("zone", ""), each.get("accelerator_type", "")),
        ]
        for where, each, what, name, how in (*api, *workers, *events)
    ]
    columns = ("WHERE", "WHAT", "NAME", "HOW", "TIMES", "SERVED", "ZONE", "TYPE")
    return View({key: document[key] for key in ("faults", "workers", "events")}, columns, rows)


def _workers(index: int | None) -> str:
    return "all workers" if index is None else f"worker {index}"
