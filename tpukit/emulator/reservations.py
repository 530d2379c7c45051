"""Reservations: Google sells them, so here the control plane makes them; the API lists them."""

from __future__ import annotations

import re

from tpukit.emulator.catalogue import Catalogue
from tpukit.emulator.context import Call, Context, listing
from tpukit.emulator.errors import Json, invalid

_NAME = re.compile(
    r"projects/([^/]+)/locations/([^/]+)/reservations/([a-z]([-a-z0-9]{0,61}[a-z0-9])?)"
)


class Reservations:
    """Reserved capacity. It is listed and counts nothing: the emulator has room for all."""

    def __init__(self, context: Context, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue

    @property
    def _records(self) -> dict[str, Json]:
        return self._context.state.reservations

    def list(self, call: Call) -> Json:
        prefix = self._catalogue.prefix(call, "reservations")
        found = ((name, doc) for name, doc in self._records.items() if name.startswith(prefix))
        return listing(call, "reservations", found)

    def add(self, call: Call) -> Json:
        """Make `{"name": FULL_NAME, "resourceType": "v4", "size": 64}`, a size in chips."""
        name, size = call.body.get("name"), call.body.get("size", 1)
        kind = call.body.get("resourceType", "")
        found = _NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None or found[2] not in self._catalogue.zones:
            raise invalid("name must be projects/P/locations/ZONE/reservations/R of a known zone.")
        if isinstance(size, bool) or not isinstance(size, int) or not isinstance(kind, str):
            raise invalid("size must be a number of chips, and resourceType a text.")
        self._records[found[0]] = {
            "name": found[0],
            "state": "ACTIVE",
            "standard": {
                "size": size,
                "capacityUnits": "CHIPS",
                "resourceType": kind,
                "interval": {"startTime": self._context.stamp()},
                "usage": {"total": "0"},
            },
        }
        self._context.changed = True
        return self._records[found[0]]
