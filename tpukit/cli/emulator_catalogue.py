"""`tpukit emulator add`, `remove` and `catalogue`: the offers and quotas of the emulated cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tpukit.cli.local import client
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.emulator.control_client import EmulatorClient

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
    _check(kind, given)
    emulator, zone = client(toolkit.paths), toolkit.flags.zone
    actions: dict[str, Callable[[], None]] = {
        "zone": lambda: emulator.add_zone(name),
        "accelerator-type": lambda: emulator.add_accelerator_type(name, zone or "-"),
        "runtime-version": lambda: emulator.add_runtime_version(name),
        "network": lambda: emulator.add_network(name, **_project(toolkit)),
        "reservation": lambda: emulator.add_reservation(
            name, zone, flags.generation, flags.chips or 0, **_project(toolkit)
        ),
        "quota": lambda: emulator.set_quota(name, zone, flags.limit or 0, flags.spot),
    }
    actions[kind]()
    return _view(emulator)


def remove(toolkit: Toolkit, kind: Kind, name: Name, spot: Spot = False) -> View:
    """Remove something from the emulated cloud's offers, or lift a quota.

    Removing the default network also removes the rules that Google gives it; adding it again does
    not bring them back.

    Examples:
      tpukit emulator remove accelerator-type v4-8 --zone us-central2-b
      tpukit emulator remove zone us-central1-f
    """
    zone = toolkit.flags.zone
    _check(kind, {"--zone": zone, "--limit": 0, "--generation": "-", "--chips": 0})
    emulator = client(toolkit.paths)
    actions: dict[str, Callable[[], None]] = {
        "zone": lambda: emulator.remove_zone(name),
        "accelerator-type": lambda: emulator.remove_accelerator_type(name, zone or "-"),
        "runtime-version": lambda: emulator.remove_runtime_version(name),
        "network": lambda: emulator.remove_network(name, **_project(toolkit)),
        "reservation": lambda: emulator.remove_reservation(name, zone, **_project(toolkit)),
        "quota": lambda: emulator.remove_quota(name, zone, spot),
    }
    actions[kind]()
    return _view(emulator)


def catalogue(toolkit: Toolkit) -> View:
    """List the additions and removals, and the quotas with their use.

    Example:
      tpukit emulator catalogue
    """
    return _view(client(toolkit.paths))


def _check(kind: str, given: dict[str, Any]) -> None:
    if kind not in _KINDS:
        raise BadInput(f"no kind {one_line(kind)}", fix=Fix(note=f"one of {', '.join(_KINDS)}"))
    missing = [flag for flag in _KINDS[kind] if given[flag] in ("", None)]
    if missing:
        raise BadInput(f"a {kind} needs {' and '.join(missing)}", fix=Fix(note=_EXAMPLES[kind]))


def _project(toolkit: Toolkit) -> dict[str, str]:
    return {"project": toolkit.flags.project} if toolkit.flags.project else {}


def _view(emulator: EmulatorClient) -> View:
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
