"""Slices as tables and documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpukit.console import Cell, View
from tpukit.errors import Fix
from tpukit.slices import lifetime, naming

if TYPE_CHECKING:
    from tpukit.models import DataDisk, Slice, SliceList
    from tpukit.slices.update import Updated


def slices(listed: SliceList, now: float, rates: Mapping[str, float]) -> View:
    """Show slices, one a row; `now` is in seconds since the epoch."""
    document = {
        "slices": [_with_lifetime(each, now, rates) for each in listed.slices],
        "unreachable": list(listed.unreachable),
    }
    what = ("NAME", "ZONE", "TYPE", "STATE", "HEALTH", "WORKERS", "CAPACITY")
    columns = (*what, "OWNER", "CREATED", "HOURS", "LEFT", "COST", "PURPOSE")
    rows = [_slice_row(each, now, rates) for each in listed.slices]
    silent = [f"{each} did not answer: the list may be incomplete" for each in listed.unreachable]
    return View(document, columns, rows, warnings=[*silent, *unread(listed.slices)])


def unread(slices: Iterable[Slice]) -> list[str]:
    """Return a warning for each slice of which the API's answer could not be read in full."""
    return [
        f"slice {slice_.name}: the API's answer could not be read: {', '.join(slice_.unreadable)}"
        for slice_ in slices
        if slice_.unreadable
    ]


def unhealthy(slice_: Slice) -> list[str]:
    """Return a warning if a slice is READY and the API says that it is not healthy."""
    if slice_.state != "READY" or slice_.health in ("", "HEALTHY"):
        return []
    said = f"{slice_.health} {slice_.health_description}".strip()
    return [f"slice {slice_.name} is READY, but its health is {said}"]


def one_slice(
    found: Slice, *, extra: dict[str, Any] | None = None, next: tuple[Fix, ...] = ()
) -> View:
    """Show one slice: its name alone where the caller is a script, its whole document as JSON."""
    document = {"slice": found.document(), **(extra or {})}
    return View(document, rows=[[found.name]], next=next, warnings=unhealthy(found))


def several_slices(made: Sequence[tuple[Slice, Mapping[str, object]]], next: Sequence[Fix]) -> View:
    """Show slices that were made by one command, a name a row."""
    documents = [{"slice": found.document(), **extra} for found, extra in made]
    rows = [[found.name] for found, _ in made]
    warnings = [line for found, _ in made for line in unhealthy(found)]
    return View({"slices": documents}, rows=rows, next=next, warnings=warnings)


def updated(done: Updated, warnings: Sequence[str]) -> View:
    """Show what of a slice was changed."""
    document = {
        "slice": done.slice.document(),
        "changed": list(done.changed),
        "beside": list(done.beside),
    }
    return View(document, rows=[[done.slice.name]], warnings=warnings)


def described(found: Slice, now: float, rates: Mapping[str, float]) -> View:
    """Show everything about one slice, a field a row; `now` is in seconds since the epoch."""
    lives = lifetime.lifetime(found, now, rates)
    workers = {
        f"worker {each.index}": ", ".join(
            f"{kind} {address}"
            for kind, address in (
                ("external", each.external_address),
                ("internal", each.internal_address),
            )
            if address
        )
        for each in found.workers
    }
    fields = {
        "name": found.name,
        "zone": found.zone,
        "project": found.project,
        "accelerator type": found.accelerator_type,
        "topology": found.topology,
        "runtime version": found.runtime_version,
        "state": found.state,
        "health": f"{found.health} {found.health_description}".strip(),
        "capacity": found.provisioning,
        "network": found.network,
        "subnetwork": found.subnetwork,
        "external addresses": "yes" if found.external_addresses else "no",
        "service account": found.service_account,
        "data disks": ", ".join(map(_disk, found.data_disks)),
        "queued resource": found.queued_resource,
        "tags": ", ".join(found.tags),
        "labels": ", ".join(f"{key}={value}" for key, value in sorted(found.labels.items())),
        "created": found.created,
        "hours": _figure(lives.hours),
        "expires": f"{lives.expires} ({_left(lives)})" if lives.expires else lives.unreadable,
        "cost": _figure(lives.cost),
        "purpose": lives.purpose,
        **workers,
    }
    document = {"slice": _with_lifetime(found, now, rates)}
    return View(document, ("FIELD", "VALUE"), list(fields.items()), warnings=unread([found]))


def extended(found: Sequence[Slice], now: float) -> View:
    """Show when the life of a slice, or of several, ends now: of one slice the end alone."""
    documents = [_with_lifetime(each, now, {}) for each in found]
    document = {"slice": documents[0]} if len(documents) == 1 else {"slices": documents}
    ends = [lifetime.lifetime(slice_, now).expires or "never" for slice_ in found]
    rows = [[slice_.name, end] for slice_, end in zip(found, ends, strict=True)]
    rows = rows if len(rows) > 1 else [ends]
    return View(document, rows=rows, warnings=unguarded(found))


def unguarded(slices: Iterable[Slice]) -> list[str]:
    """Return a warning for each slice with an end: no label tells whether it has a guard."""
    return [
        f"slice {slice_.name} ends by itself only under a guard, which tpukit up puts on it; "
        "tpukit reap ends it otherwise"
        for slice_ in slices
        if lifetime.EXPIRES in slice_.labels
    ]


def _slice_row(found: Slice, now: float, rates: Mapping[str, float]) -> list[object]:
    cells = (found.name, found.zone, found.accelerator_type, found.state, found.health)
    owner, created = naming.owner(found), found.created[:19]
    age = Cell(created, lifetime.ago(created, now))
    lives = lifetime.lifetime(found, now, rates)
    seconds = "" if lives.seconds_left is None else f"{lives.seconds_left:.0f}"
    left = Cell(lives.unreadable or seconds, _left(lives))
    used = (_figure(lives.hours), left, _figure(lives.cost), lives.purpose)
    return [*cells, len(found.workers), found.provisioning, owner, age, *used]


def _with_lifetime(found: Slice, now: float, rates: Mapping[str, float]) -> dict[str, Any]:
    lives = lifetime.lifetime(found, now, rates)
    return {**found.document(), "lifetime": lives.document()}


def _figure(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _left(lives: lifetime.Lifetime) -> str:
    """Return how much time is left, in the largest unit of which there are two."""
    if lives.seconds_left is None:
        return lives.unreadable
    if lives.seconds_left <= 0:
        return "time is up"
    return f"{lifetime.span(lives.seconds_left)} left"


def _disk(disk: DataDisk) -> str:
    return f"{disk.source} (read-only)" if disk.read_only else disk.source
