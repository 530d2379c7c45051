"""Slices as tables and documents."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpukit.console import Cell, View
from tpukit.errors import Fix
from tpukit.slices import lifetime, naming

if TYPE_CHECKING:
    from tpukit.models import DataDisk, Slice, SliceList
    from tpukit.slices.update import Updated
    from tpukit.ssh.fan_out import Outcome

_USUAL = (
    *("NAME", "ZONE", "TYPE", "STATE", "HEALTH", "WORKERS", "CAPACITY"),
    *("OWNER", "CREATED", "HOURS", "LEFT", "COST", "PURPOSE"),
)
#: LEFT is the same end as EXPIRES, in words.
COLUMNS = (*_USUAL, "EXPIRES", "CLAIM")
#: The columns that a narrow terminal does without, the first one first.
_SPARE = ("HOURS", "OWNER", "CREATED", "PURPOSE", "CAPACITY", "WORKERS", "COST")


def slices(
    listed: SliceList, now: float, rates: Mapping[str, float], columns: Sequence[str] = ()
) -> View:
    """Show slices, one in a row; `now` is in seconds since the epoch.

    `columns` are some of `COLUMNS`; without them the table has the usual ones.
    """
    document = {
        "slices": [_with_lifetime(slice_, now, rates) for slice_ in listed.slices],
        "unreachable": list(listed.unreachable),
    }
    rows = [_slice_row(slice_, now, rates) for slice_ in listed.slices]
    silent = [f"{zone} did not answer: the list may be incomplete" for zone in listed.unreachable]
    warnings = [*silent, *unread(listed.slices)]
    view = View(document, COLUMNS, rows, warnings=warnings)
    return view.only(columns) if columns else replace(view.only(_USUAL), spare=_SPARE)


def unread(slices: Iterable[Slice]) -> list[str]:
    """Return a warning for each slice with unreadable fields."""
    return [
        f"slice {slice_.name}: the API's answer could not be read: {', '.join(slice_.unreadable)}"
        for slice_ in slices
        if slice_.unreadable
    ]


def unhealthy(slice_: Slice) -> list[str]:
    """Return a warning if a slice is READY, but not healthy."""
    if slice_.state != "READY" or slice_.health in ("", "HEALTHY"):
        return []
    health = f"{slice_.health} {slice_.health_description}".strip()
    return [f"slice {slice_.name} is READY, but its health is {health}"]


def one_slice(
    slice_: Slice, *, extra: dict[str, Any] | None = None, next: tuple[Fix, ...] = ()
) -> View:
    """Show one slice: its name as a row, everything in the document."""
    document = {"slice": slice_.document(), **(extra or {})}
    return View(document, rows=[[slice_.name]], next=next, warnings=unhealthy(slice_))


def several_slices(made: Sequence[tuple[Slice, Mapping[str, object]]], next: Sequence[Fix]) -> View:
    """Show the slices that one command has created, one name in a row."""
    documents = [{"slice": slice_.document(), **extra} for slice_, extra in made]
    rows = [[slice_.name] for slice_, _ in made]
    warnings = [line for slice_, _ in made for line in unhealthy(slice_)]
    return View({"slices": documents}, rows=rows, next=next, warnings=warnings)


def changed(outcomes: Sequence[Outcome[Slice, Slice]]) -> View:
    """Show the slices that one command has changed; raise the error if there is only one."""
    from tpukit.cli.views.outcome_views import worst
    from tpukit.ssh.fan_out import values

    if len(outcomes) == 1:
        return one_slice(*values(outcomes))
    view = several_slices([(outcome.value, {}) for outcome in outcomes if outcome.value], ())
    failed = [(outcome.item, outcome.error) for outcome in outcomes if outcome.error]
    errors = [{"name": slice_.name, "error": error.document()} for slice_, error in failed]
    warnings = [f"slice {slice_.name}: {error.summary()}" for slice_, error in failed]
    return replace(
        view,
        document={**view.document, "failed": errors},
        warnings=[*view.warnings, *warnings],
        status=worst(outcomes),
    )


def updated(done: Updated, warnings: Sequence[str]) -> View:
    """Show the name of an updated slice as a row; the document has the changes."""
    document = {
        "slice": done.slice.document(),
        "changed": list(done.changed),
        "beside": list(done.beside),
    }
    return View(document, rows=[[done.slice.name]], warnings=warnings)


def described(slice_: Slice, now: float, rates: Mapping[str, float]) -> View:
    """Show the fields of one slice, one in a row; `now` is in seconds since the epoch.

    tpukit's own labels are shown as owner, expires and purpose.
    """
    created, lives = slice_.created[:19], lifetime.lifetime(slice_, now, rates)
    workers = {
        f"worker {worker.index}": ", ".join(
            f"{kind} {address}"
            for kind, address in (
                ("external", worker.external_address),
                ("internal", worker.internal_address),
            )
            if address
        )
        for worker in slice_.workers
    }
    fields = {
        "name": slice_.name,
        "zone": slice_.zone,
        "project": slice_.project,
        "api": "" if slice_.api == "tpu" else "Compute Engine",
        "accelerator type": slice_.accelerator_type,
        "topology": slice_.topology,
        "runtime version": slice_.runtime_version,
        "state": slice_.state,
        "health": f"{slice_.health} {slice_.health_description}".strip(),
        "capacity": slice_.provisioning,
        "network": slice_.network,
        "subnetwork": slice_.subnetwork,
        "external addresses": "yes" if slice_.external_addresses else "no",
        "service account": slice_.service_account,
        "data disks": ", ".join(map(_disk, slice_.data_disks)),
        "queued resource": slice_.queued_resource,
        "tags": ", ".join(slice_.tags),
        "owner": naming.owner(slice_),
        "labels": ", ".join(
            f"{key}={value}"
            for key, value in sorted(slice_.labels.items())
            if not key.startswith("tpukit-")
        ),
        "created": f"{created}Z ({lifetime.ago(created, now)})" if created else "",
        "hours": _figure(lives.hours),
        "expires": f"{lives.expires} ({_left(lives)})" if lives.expires else lives.unreadable,
        "claim": f"by {lives.claim}, else it is deleted" if lives.claim else "",
        "cost": _figure(lives.cost),
        "purpose": lives.purpose,
        **workers,
    }
    document = {"slice": _with_lifetime(slice_, now, rates)}
    rows = [[name, value] for name, value in fields.items() if value]
    warnings = [*unread([slice_]), *unhealthy(slice_)]
    columns, after = ("FIELD", "VALUE"), _next(slice_)
    return View(document, columns, rows, warnings=warnings, next=after, name=slice_.name)


def _next(slice_: Slice) -> list[Fix]:
    """Return the commands that are likely to come next for a slice in its state."""
    place = (slice_.name, "--zone", slice_.zone)
    if slice_.lost:
        return [Fix.command("tpukit", "delete", *place, note="it does not come back")]
    if slice_.ready:
        return [
            *claims([slice_]),
            Fix.command("tpukit", "ssh", *place),
            Fix.command("tpukit", "doctor", *place),
        ]
    return [Fix.command("tpukit", "start", *place)] if slice_.state == "STOPPED" else []


def claims(slices: Iterable[Slice]) -> list[Fix]:
    """Return the command that claims each slice that waits for it."""
    return [
        Fix.command(
            *("tpukit", "extend", slice_.name, "--zone", slice_.zone),
            note=f"claims it, as ssh, run and train do; else it is deleted at {_time(end)}",
        )
        for slice_ in slices
        if (end := lifetime.claim_end(slice_)) is not None
    ]


def _time(seconds: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def extended(slices: Sequence[Slice], now: float) -> View:
    """Show the new end of each slice; a single slice is shown without its name."""
    documents = [_with_lifetime(slice_, now, {}) for slice_ in slices]
    document = {"slice": documents[0]} if len(documents) == 1 else {"slices": documents}
    ends = [lifetime.lifetime(slice_, now).expires or "never" for slice_ in slices]
    rows = [[slice_.name, end] for slice_, end in zip(slices, ends, strict=True)]
    rows = rows if len(rows) > 1 else [ends]
    return View(document, rows=rows, warnings=unguarded(slices))


def unguarded(slices: Iterable[Slice]) -> list[str]:
    """Return a warning about the slices with an end, because no label says if they have a guard."""
    ends = {lifetime.EXPIRES, lifetime.CLAIM}
    names = [slice_.name for slice_ in slices if ends & slice_.labels.keys()]
    if not names:
        return []
    several = len(names) > 1
    end = "end by themselves" if several else "ends by itself"
    return [
        f"{'slices' if several else 'slice'} {', '.join(names)} {end} only under a guard, which "
        f"tpukit up puts on {'them' if several else 'it'}; tpukit reap deletes slices whose time "
        "is up"
    ]


def _slice_row(slice_: Slice, now: float, rates: Mapping[str, float]) -> list[object]:
    health = _unless("HEALTHY", slice_.health)
    cells = (slice_.name, slice_.zone, slice_.accelerator_type, slice_.state, health)
    workers = _unless("1", str(len(slice_.workers)))
    capacity = _unless("on-demand", slice_.provisioning)
    owner, created = naming.owner(slice_), slice_.created[:19]
    age = Cell(created, lifetime.ago(created, now))
    lives = lifetime.lifetime(slice_, now, rates)
    seconds = "" if lives.seconds_left is None else f"{lives.seconds_left:.0f}"
    left = Cell(lives.unreadable or seconds, _left(lives))
    used = (_figure(lives.hours), left, _figure(lives.cost), lives.purpose)
    return [
        *cells,
        workers,
        capacity,
        owner,
        age,
        *used,
        lives.expires or lives.unreadable,
        lives.claim,
    ]


def _unless(usual: str, text: str) -> Cell:
    """Return a cell that is empty on a terminal if its text is the usual one."""
    return Cell(text, "" if text == usual else text)


def _with_lifetime(slice_: Slice, now: float, rates: Mapping[str, float]) -> dict[str, Any]:
    lives = lifetime.lifetime(slice_, now, rates)
    return {**slice_.document(), "lifetime": lives.document()}


def _figure(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _left(lives: lifetime.Lifetime) -> str:
    """Return the time left in words, or the text of an unreadable end."""
    if lives.seconds_left is None:
        return lives.unreadable
    if lives.seconds_left <= 0:
        return "time is up"
    span = lifetime.span(lives.seconds_left)
    return f"{span} to claim" if lives.claim == lives.expires else f"{span} left"


def _disk(disk: DataDisk) -> str:
    return f"{disk.source} (read-only)" if disk.read_only else disk.source
