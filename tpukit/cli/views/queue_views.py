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
    """Show requests, one in a row; `now` is in seconds since the epoch."""
    silent = [f"{zone} did not answer: the list may be incomplete" for zone in listed.unreachable]
    dead = [request for request in listed.requests if request.dead]
    held = [f"{request.name} is {request.state}, and keeps its quota" for request in dead]
    document = {
        "requests": [_document(request) for request in listed.requests],
        "unreachable": list(listed.unreachable),
    }
    rows = [_row(request, now) for request in listed.requests]
    return View(
        document,
        _COLUMNS,
        rows,
        [_delete(request) for request in dead],
        [*silent, *held],
        spare=("SLICES", "OWNER", "CREATED", "CAPACITY"),
    )


def one_request(
    request: QueuedResource, *, extra: dict[str, Any] | None = None, next: tuple[Fix, ...] = ()
) -> View:
    """Show one request: its name as a row, everything in the document."""
    return View({"request": _document(request), **(extra or {})}, rows=[[request.name]], next=next)


def extended(request: QueuedResource, now: float) -> View:
    """Show the new end of a request's slices as a row."""
    ends = lifetime(request.node, now).expires if request.node else ""
    return View({"request": _document(request)}, rows=[[ends or "never"]])


def described(request: QueuedResource) -> View:
    """Show all fields of one request, one in a row."""
    action = states().get(request.state, {}).get("action", "")
    fields = {
        "name": request.name,
        "zone": request.zone,
        "project": request.project,
        "accelerator type": request.accelerator_type,
        "slices": ", ".join(request.slices),
        "capacity": request.provisioning,
        "state": request.state,
        "meaning": meaning(request),
        "what to do": action,
        "error": request.error,
        "labels": ", ".join(f"{key}={value}" for key, value in sorted(request.labels.items())),
        "created": request.created,
    }
    document, rows = {"request": _document(request)}, list(fields.items())
    after = (_delete(request),) if request.dead else ()
    return View(document, ("FIELD", "VALUE"), rows, after, name=request.name)


def deleted(names: Sequence[str], rules: Sequence[str]) -> View:
    """Show the names of deleted requests, and the commands that remove the remaining rules."""
    remove = [Fix.command("tpukit", "firewall", "remove", rule) for rule in rules]
    return View(
        {"deleted": list(names)}, rows=[[name] for name in names], next=remove, status=bool(rules)
    )


def _document(request: QueuedResource) -> dict[str, Any]:
    return {**request.document(), "meaning": meaning(request)}


def _row(request: QueuedResource, now: float) -> list[object]:
    created = request.created[:19]
    kind, number = request.accelerator_type, len(request.slices)
    owner, age = request.labels.get(OWNER, ""), Cell(created, ago(created, now))
    place = (request.name, request.zone, kind, number, request.state)
    return [*place, request.provisioning, owner, age, request.error or meaning(request)]


def _delete(request: QueuedResource) -> Fix:
    return Fix.command("tpukit", "queue", "delete", request.name, "--zone", request.zone)
