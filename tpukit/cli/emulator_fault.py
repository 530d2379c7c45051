"""`tpukit emulator fault` and `worker`: what is to go wrong, and what did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tpukit.cli.emulator_client import client
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import verb
from tpukit.console import View
from tpukit.errors import BadInput
from tpukit.text import one_line

Preset = Annotated[
    str, typer.Argument(metavar="[PRESET]", help="One of `tpukit emulator fault presets`.")
]
Method = Annotated[str, typer.Option(metavar="PATTERN", help="Of API methods: nodes.*.")]
NodeName = Annotated[
    str, typer.Option("--name", metavar="PATTERN", help="Of the slice or rule it is about.")
]
TypeName = Annotated[
    str, typer.Option("--accelerator-type", metavar="PATTERN", help="Strikes creates alone.")
]
Kind = Annotated[
    str, typer.Option(metavar="KIND", help="status, operation, reset, stall or truncate.")
]
Phase = Annotated[
    str, typer.Option(metavar="PHASE", help="before or after the call is carried out.")
]
StatusName = Annotated[
    str, typer.Option("--status", metavar="STATUS", help="Google's name: UNAVAILABLE, …")
]
Message = Annotated[str, typer.Option(metavar="TEXT", help="Text of the error.")]
Seconds = Annotated[float, typer.Option(metavar="SECONDS", min=0.0, help="Length of a stall.")]
Times = Annotated[
    int, typer.Option(metavar="N", min=0, help="How often; 0: once, or always with odds.")
]
Probability = Annotated[
    float, typer.Option(metavar="P", min=0.0, max=1.0, help="Odds of each call.")
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the odds.")]

SliceName = Annotated[str, typer.Argument(metavar="NAME", help="Name of a slice, or a pattern.")]
Index = Annotated[str, typer.Argument(metavar="WORKER", help="Number of a worker, or all.")]
WorkerFault = Annotated[
    str,
    typer.Option(
        "--fault",
        metavar="KIND",
        help="dead, frozen, refusing, slow, cut, late-key, swapped-host-key, reused-address,"
        " apt-lock, disk-full or hostile-output.",
    ),
]
Lasting = Annotated[
    float, typer.Option("--seconds", metavar="SECONDS", min=0.0, help="0: until cleared.")
]
Victims = Annotated[
    int, typer.Option("--times", metavar="N", min=0, help="Connections or commands; 0: all.")
]
Bytes = Annotated[int, typer.Option(metavar="N", min=0, help="For cut: how many come through.")]
Rate = Annotated[int, typer.Option(metavar="N", min=1, help="For slow: bytes a second.")]
Clear = Annotated[bool, typer.Option("--clear", help="End the faults of these workers.")]


def application() -> typer.Typer:
    app = typer.Typer(help="Let calls of the API go wrong, and count those that did.")
    for name, function in (
        ("add", add),
        ("list", list_faults),
        ("clear", clear),
        ("presets", presets),
    ):
        app.command(name)(verb(function))
    return app


def add(
    toolkit: Toolkit,
    preset: Preset = "",
    method: Method = "",
    name: NodeName = "",
    accelerator_type: TypeName = "",
    kind: Kind = "",
    phase: Phase = "",
    status: StatusName = "",
    message: Message = "",
    seconds: Seconds = 0.0,
    times: Times = 0,
    probability: Probability = 1.0,
    seed: Seed = 0,
) -> View:
    """Spoil calls of the API that fit.

    With the global --zone, calls in that zone alone.

    Examples:
      tpukit emulator fault add stockout --name demo --times 2
      tpukit emulator fault add --method nodes.get --kind reset --probability 0.2 --seed 7
    """
    rule = {
        "preset": preset,
        "method": method,
        "name": name,
        "zone": toolkit.flags.zone,
        "accelerator_type": accelerator_type,
        "kind": kind,
        "phase": phase,
        "status": status,
        "message": message,
        "seconds": seconds,
        "times": times,
        "probability": probability if probability < 1.0 else "",
        "seed": seed,
    }
    return account(client(toolkit).add_fault({key: value for key, value in rule.items() if value}))


def list_faults(toolkit: Toolkit) -> View:
    """List the faults in force, and how often each was served.

    Example:
      tpukit emulator fault list --json
    """
    return account(client(toolkit).faults())


def clear(toolkit: Toolkit) -> View:
    """End every fault and print the last account.

    Those of workers and the events of scenarios too.

    Example:
      tpukit emulator fault clear
    """
    return account(client(toolkit).clear_faults())


def presets(toolkit: Toolkit) -> View:
    """List the refusals of the service known by name.

    Example:
      tpukit emulator fault presets
    """
    from tpukit.emulator.presets import PRESETS

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
    fault: WorkerFault = "",
    seconds: Lasting = 0.0,
    times: Victims = 0,
    bytes: Bytes = 10_000,
    rate: Rate = 10_000,
    clear: Clear = False,
) -> View:
    """Inflict a fault on workers, or end it with --clear.

    Examples:
      tpukit emulator worker demo 1 --fault frozen --seconds 30
      tpukit emulator worker demo all --clear
    """
    number = _number(index)
    if clear == bool(fault):
        raise BadInput("either --fault or --clear", fix=f"tpukit emulator worker {name} --clear")
    if clear:
        return account(client(toolkit).clear_worker_faults(name, number))
    rule: dict[str, Any] = {"node": name, "worker": number, "fault": fault}
    rule |= {"cut": {"bytes": bytes}, "slow": {"rate": rate}}.get(fault, {})
    rule |= {key: value for key, value in (("seconds", seconds), ("times", times)) if value}
    return account(client(toolkit).add_worker_fault(rule))


def account(document: Mapping[str, Any]) -> View:
    """Return every rule with what it struck, as one table."""
    rows = [
        *(
            _row("api", rule, rule["method"], rule["name"], rule["kind"])
            for rule in document["faults"]
        ),
        *(
            _row("worker", rule, rule["fault"], rule["node"], _of(rule["worker"]))
            for rule in document["workers"]
        ),
        *(
            _row("event", rule, rule["do"], rule["node"], f"after {rule['after']:g}s")
            for rule in document["events"]
        ),
    ]
    columns = ("WHERE", "WHAT", "NAME", "HOW", "TIMES", "SERVED")
    kept = {key: document[key] for key in ("faults", "workers", "events")}
    return View(kept, columns, rows)


def _row(where: str, rule: Mapping[str, Any], what: str, name: str, how: str) -> list[str]:
    times = rule["times"]
    return [where, what, name, how, "" if times is None else str(times), str(rule["served"])]


def _of(worker: int | None) -> str:
    return "all workers" if worker is None else f"worker {worker}"


def _number(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise BadInput(f"{one_line(text)!r} is not the number of a worker", fix="0, 1, … or all")
    return int(text)
