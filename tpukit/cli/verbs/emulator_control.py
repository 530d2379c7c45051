"""Changes of the emulated cloud: `tpukit emulator clock`, `preempt`, `health`, `add` and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.local import client
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.emulator.control_client import EmulatorClient

SliceName = Annotated[str, Argument(metavar="NAME", help="Name of a slice.")]
Vanish = Annotated[
    bool, Option("--vanish", help="Remove the slice instead of leaving it PREEMPTED.")
]
Health = Annotated[str, Argument(metavar="HEALTH", help="HEALTHY, UNHEALTHY_TENSORFLOW, …")]
State = Annotated[str, Argument(metavar="STATE", help="REPAIRING, HIDDEN, READY, …")]
Advance = Annotated[str, Argument(metavar="DURATION", help="Time to add: 90s, 20m, 1h.")]
Speed = Annotated[float, Argument(metavar="FACTOR", help="Speed; 1 is real time, 0 stops it.")]
MethodPattern = Annotated[
    str, Option("--method", metavar="PATTERN", help="Only these API methods: nodes.*.")
]
Kind = Annotated[
    str,
    Argument(
        metavar="KIND",
        help="zone, accelerator-type, runtime-version, network, reservation or quota.",
    ),
]
Name = Annotated[
    str, Argument(metavar="NAME", help="Its name; for a quota, an accelerator type of it.")
]
Spot = Annotated[bool, Option("--spot", help="The quota of spot slices.")]

#: The flags that each kind needs.
_KINDS: Mapping[str, tuple[str, ...]] = {
    "zone": (),
    "accelerator-type": (),
    "runtime-version": (),
    "network": (),
    "reservation": ("--zone", "--generation", "--chips"),
    "quota": ("--zone", "--limit"),
}
_EXAMPLES = {
    "reservation": "for example: reservation r1 --zone us-central2-b --generation v4 --chips 64",
    "quota": "for example: quota v3-8 --zone us-central1-a --limit 16",
}


@dataclass(frozen=True)
class OfferFlags:
    """The details of a new quota or reservation."""

    limit: Annotated[
        int | None,
        Option(metavar="N", min=0, help="Limit of a quota, in the unit of the type's name."),
    ] = None
    spot: Spot = False
    generation: Annotated[str, Option(metavar="v4|v5p|…", help="Generation of a reservation.")] = ""
    chips: Annotated[int | None, Option(metavar="N", min=1, help="Chips of a reservation.")] = None


def clock_application() -> typer.Typer:
    return group("Show and move the emulator's clock.", show, advance, speed)


def show(toolkit: Toolkit) -> View:
    """Show the emulator's time and its speed.

    Example:
      tpukit emulator clock show
    """
    return _clock(client(toolkit.paths).status())


def advance(toolkit: Toolkit, duration: Advance) -> View:
    """Move the clock forward; everything that is due by then happens at once.

    Example:
      tpukit emulator clock advance 20m
    """
    from tpukit.cli.parameters import seconds

    return _clock(client(toolkit.paths).move_clock(advance=seconds(duration)))


def speed(toolkit: Toolkit, factor: Speed) -> View:
    """Let the emulator's time pass faster or slower than real time.

    Example:
      tpukit emulator clock speed 60
    """
    return _clock(client(toolkit.paths).move_clock(speed=factor))


def preempt(toolkit: Toolkit, name: SliceName, vanish: Vanish = False) -> View:
    """Preempt a slice, as Google does with spot slices.

    Examples:
      tpukit emulator preempt demo
      tpukit emulator preempt demo --vanish
    """
    node = client(toolkit.paths).preempt(name, vanish)
    toolkit.console.say(f"{name}: {'gone' if vanish else node['state']}")
    return View({"node": node, "vanished": vanish})


def health(toolkit: Toolkit, name: SliceName, health: Health) -> View:
    """Set a slice's health without changing its state.

    Example:
      tpukit emulator health demo UNHEALTHY_MAINTENANCE
    """
    node = client(toolkit.paths).set_health(name, health)
    return View({"node": node}, rows=[[node["state"], node.get("health", "")]])


def state(toolkit: Toolkit, name: SliceName, state: State) -> View:
    """Set a slice's state, as Google would; its workers follow.

    Example:
      tpukit emulator state demo REPAIRING
    """
    node = client(toolkit.paths).set_state(name, state)
    return View({"node": node}, rows=[[node["state"], node.get("health", "")]])


def reset(toolkit: Toolkit) -> View:
    """Remove all slices, rules, faults and the log, and set the clock to this machine's time.

    Example:
      tpukit emulator reset
    """
    client(toolkit.paths).reset()
    toolkit.console.say("the emulator is empty")
    return View({"reset": True})


def log(toolkit: Toolkit, method: MethodPattern = "*") -> View:
    """List the latest requests, the oldest first.

    Examples:
      tpukit emulator log --method nodes.create
      tpukit emulator log --json
    """
    log = client(toolkit.paths).log()
    requests = [request for request in log if fnmatchcase(request["method"], method)]
    columns = ("TIME", "METHOD", "VERB", "PATH", "STATUS", "CUT")
    rows = [[request[column.lower()] for column in columns] for request in requests]
    return View({"requests": requests}, columns, rows)


def _clock(document: Mapping[str, Any]) -> View:
    clock = {key: document[key] for key in ("time", "speed") if key in document}
    view = View({"clock": clock}, rows=[[value] for value in clock.values()])
    if clock["speed"] != 0:
        return view
    stopped = "the clock stands still: creates and other operations do not end until it runs again"
    resume = Fix.command("tpukit", "emulator", "clock", "speed", "1")
    return replace(view, next=[resume], warnings=[stopped])


def add(toolkit: Toolkit, kind: Kind, name: Name, flags: OfferFlags = OfferFlags()) -> View:
    """Let the emulated cloud offer something, or limit it by a quota.

    A reservation and a quota need the global --zone; with it, an accelerator type is added only to
    this zone. Networks and reservations belong to --project, by default to the project of
    `tpukit emulator env`. Changes stay until `remove` or `reset`.

    Examples:
      tpukit emulator add runtime-version tpu-vm-v4-base
      tpukit emulator add quota v5litepod-16 --limit 32 --spot --zone us-central1-a
      tpukit emulator add network training
    """
    given = {
        "--zone": toolkit.flags.zone,
        "--limit": flags.limit,
        "--generation": flags.generation,
        "--chips": flags.chips,
    }
    _check_kind(kind, given)
    emulator, zone = client(toolkit.paths), toolkit.flags.zone
    actions: dict[str, Callable[[], None]] = {
        "zone": lambda: emulator.add_zone(name),
        "accelerator-type": lambda: emulator.add_accelerator_type(name, zone or "-"),
        "runtime-version": lambda: emulator.add_runtime_version(name),
        "network": lambda: emulator.add_network(name, **_project(toolkit.flags)),
        "reservation": lambda: emulator.add_reservation(
            name, zone, flags.generation, flags.chips or 0, **_project(toolkit.flags)
        ),
        "quota": lambda: emulator.set_quota(name, zone, flags.limit or 0, flags.spot),
    }
    actions[kind]()
    return _catalogue(emulator)


def remove(toolkit: Toolkit, kind: Kind, name: Name, spot: Spot = False) -> View:
    """Remove something from the emulated cloud's offers, or lift a quota.

    Removing the default network also removes the rules that Google gives it; adding it again does
    not bring them back.

    Examples:
      tpukit emulator remove accelerator-type v4-8 --zone us-central2-b
      tpukit emulator remove zone us-central1-f
    """
    zone = toolkit.flags.zone
    _check_kind(kind, {"--zone": zone, "--limit": 0, "--generation": "-", "--chips": 0})
    emulator = client(toolkit.paths)
    actions: dict[str, Callable[[], None]] = {
        "zone": lambda: emulator.remove_zone(name),
        "accelerator-type": lambda: emulator.remove_accelerator_type(name, zone or "-"),
        "runtime-version": lambda: emulator.remove_runtime_version(name),
        "network": lambda: emulator.remove_network(name, **_project(toolkit.flags)),
        "reservation": lambda: emulator.remove_reservation(name, zone, **_project(toolkit.flags)),
        "quota": lambda: emulator.remove_quota(name, zone, spot),
    }
    actions[kind]()
    return _catalogue(emulator)


def catalogue(toolkit: Toolkit) -> View:
    """List the additions and removals, and the quotas with their use.

    Example:
      tpukit emulator catalogue
    """
    return _catalogue(client(toolkit.paths))


def _check_kind(kind: str, given: dict[str, Any]) -> None:
    if kind not in _KINDS:
        raise BadInput(f"no kind {one_line(kind)}", fix=Fix(note=f"one of {', '.join(_KINDS)}"))
    missing = [flag for flag in _KINDS[kind] if given[flag] in ("", None)]
    if missing:
        raise BadInput(f"a {kind} needs {' and '.join(missing)}", fix=Fix(note=_EXAMPLES[kind]))


def _project(flags: GlobalFlags) -> dict[str, str]:
    return {"project": flags.project} if flags.project else {}


def _catalogue(emulator: EmulatorClient) -> View:
    catalogue = emulator.catalogue()
    rows: list[list[object]] = []
    for change in catalogue["changes"]:
        collection, _, name = change["name"].partition("/")
        rows.append([collection, name, "added" if change["offered"] else "removed"])
    for reservation in catalogue["reservations"]:
        chips = "{size} {resourceType} chips".format(**reservation["standard"])
        rows.append(["reservations", reservation["name"], chips])
    for quota in catalogue["quotas"]:
        used = ", ".join(f"{name} {size}" for name, size in quota["used"].items()) or "nothing"
        shown = f"limit {quota['limit']}, used: {used}"
        rows.append(["quotas", f"{quota['zone']}/{quota['name']}", shown])
    return View({"catalogue": catalogue}, ("KIND", "NAME", "HOW"), rows)
