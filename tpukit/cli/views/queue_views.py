"""Queued resources as tables and documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpukit.console import Cell, View
from tpukit.errors import Fix
from tpukit.models import QueuedResource, QueuedResourceList
from tpukit.slices.lifetime import ago, lifetime
from tpukit.slices.naming import OWNER
from tpukit.slices.queue_requests import meaning, states

_COLUMNS = ("NAME", "ZONE", "TYPE", "SLICES", "STATE", "CAPACITY", "OWNER", "CREATED", "MEANING")


def requests(listed: QueuedResourceList, now: float) -> View:
    """Show requests, one a row; `now` is in seconds since the epoch."""
    silent = [f"{each} did not answer: the list may be incomplete" for each in listed.unreachable]
    dead = [each for each in listed.requests if each.dead]
    held = [f"{each.name} is {each.state}, and keeps its quota" for each in dead]
    document = {
        "requests": [_document(each) for each in listed.requests],
        "unreachable": list(listed.unreachable),
    }
    rows = [_row(each, now) for each in listed.requests]
    return View(document, _COLUMNS, rows, [_delete(each) for each in dead], [*silent, *held])


def one_request(
    found: QueuedResource, *, extra: dict[str, Any] | None = None, next: tuple[Fix, ...] = ()
) -> View:
    """Show one request: its name alone where the caller is a script."""
    return View({"request": _document(found), **(extra or {})}, rows=[[found.name]], next=next)


def extended(found: QueuedResource, now: float) -> View:
    """Show when the life of a request's slices ends now: alone where the caller is a script."""
    ends = lifetime(found.node, now).expires if found.node else ""
    return View({"request": _document(found)}, rows=[[ends or "never"]])


def described(found: QueuedResource) -> View:
    """Show everything about one request, a field a row."""
    action = states().get(found.state, {}).get("action", "")
    fields = {
        "name": found.name,
        "zone": found.zone,
        "project": found.project,
        "accelerator type": found.accelerator_type,
        "slices": ", ".join(found.slices),
        "capacity": found.provisioning,
        "state": found.state,
        "meaning": meaning(found),
        "what to do": action,
        "error": found.error,
        "labels": ", ".join(f"{key}={value}" for key, value in sorted(found.labels.items())),
        "created": found.created,
    }
    after = (_delete(found),) if found.dead else ()
    return View({"request": _document(found)}, ("FIELD", "VALUE"), list(fields.items()), after)


def deleted(names: Sequence[str], rules: Sequence[str]) -> View:
    """Show the names of what was deleted, and how to remove the rules that stay."""
    remove = [Fix.command("tpukit", "firewall", "remove", rule) for rule in rules]
    return View(
        {"deleted": list(names)}, rows=[[name] for name in names], next=remove, status=bool(rules)
    )


def _document(found: QueuedResource) -> dict[str, Any]:
    return {**found.document(), "meaning": meaning(found)}


def _row(found: QueuedResource, now: float) -> list[object]:
    created = found.created[:19]
    kind, number = found.accelerator_type, len(found.slices)
    owner, age = found.labels.get(OWNER, ""), Cell(created, ago(created, now))
    place = (found.name, found.zone, kind, number, found.state)
    return [*place, found.provisioning, owner, age, found.error or meaning(found)]


def _delete(found: QueuedResource) -> Fix:
    return Fix.command("tpukit", "queue", "delete", found.name, "--zone", found.zone)
