"""A user's changes of the catalogue: the control plane's `catalogue` methods."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tpukit.accelerators import AcceleratorType, region_of
from tpukit.emulator.core.api_errors import Json, invalid, is_whole, not_found
from tpukit.emulator.core.service_context import RESOURCE_ID, Call, ServiceContext
from tpukit.emulator.tpu_service.catalogue import Catalogue, Reservations
from tpukit.emulator.tpu_service.quotas import ADDRESS_METRIC, COMPUTE_QUOTAS, Quotas, limit_name
from tpukit.errors import BadInput

_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_RUNTIME_VERSION = re.compile(r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?")
_KEYS = frozenset({"name", "zone", "project", "spot", "limit", "resourceType", "size"})


@dataclass(frozen=True)
class CatalogueChanges:
    """Methods that add and remove zones, types, networks, reservations, quotas and so on."""

    _context: ServiceContext
    _catalogue: Catalogue
    _reservations: Reservations
    _quotas: Quotas

    def show(self, call: Call) -> Json:
        """Return the changes since the first start, the reservations, and the quotas in use."""
        changes = [
            {"name": name, "offered": record["offered"]}
            for name, record in self._context.state.offers.items()
        ]
        reservations = list(self._context.state.reservations.values())
        quotas = self._quotas.documents()
        return {"changes": changes, "reservations": reservations, "quotas": quotas}

    def add(self, call: Call) -> Json:
        """Add the body's `name` to a kind; existing entries stay."""
        return self._change(call, call.body, offered=True)

    def remove(self, call: Call) -> Json:
        """Remove the query's `name` from a kind."""
        return self._change(call, dict(call.query), offered=False)

    def _change(self, call: Call, given: Json, offered: bool) -> Json:
        kinds: Mapping[str, Callable[[Json, bool], None]] = {
            "zones": self._zone,
            "acceleratorTypes": self._type,
            "runtimeVersions": self._runtime_version,
            "networks": self._network,
            "reservations": self._reservation,
            "quotas": self._quota,
        }
        change = kinds.get(call.path["kind"])
        if change is None:
            raise invalid(f"The kinds of the catalogue are {', '.join(kinds)}.")
        if given.keys() - _KEYS:
            raise invalid(f"The keys of an entry are {', '.join(sorted(_KEYS))}.")
        change(given, offered)
        return self.show(call)

    def _zone(self, given: Json, offered: bool) -> None:
        name = _text(given, "name", _ZONE)
        if not offered:
            self._known_zone(given, "name")
            state = self._context.state
            resources = (
                *(*state.nodes, *state.instances),
                *(*state.queued_resources, *state.reservations),
            )
            held = [resource for resource in resources if f"/{name}/" in resource]
            if held:
                raise invalid(f"{name} still contains {held[0]}.")
        self._context.offer(f"zones/{name}", offered)

    def _type(self, given: Json, offered: bool) -> None:
        kind, zone = self._accelerator_type(given), given.get("zone") or "-"
        if zone != "-":
            self._known_zone(given, "zone")
        else:
            for key in [k for k in self._context.state.offers if k.endswith(f"/{kind.name}")]:
                del self._context.state.offers[key]
        self._context.offer(f"acceleratorTypes/{zone}/{kind.name}", offered)

    def _runtime_version(self, given: Json, offered: bool) -> None:
        name = _text(given, "name", _RUNTIME_VERSION)
        if not offered and name not in self._catalogue.runtime_versions:
            raise not_found(name)
        self._context.offer(f"runtimeVersions/{name}", offered)

    def _network(self, given: Json, offered: bool) -> None:
        """Add a network without rules, or remove one together with its rules."""
        project, name = _text(given, "project"), _text(given, "name", RESOURCE_ID)
        full, state = f"projects/{project}/global/networks/{name}", self._context.state
        if not offered:
            if not self._context.has_network(project, full):
                raise not_found(full)
            for node, record in state.nodes.items():
                if record["node"]["networkConfig"]["network"] == full:
                    raise invalid(f"{full} still contains {node}.")
            rules = state.firewalls.items()
            for name in [name for name, rule in rules if rule["network"] == full]:
                del state.firewalls[name]
        self._context.offer_network(full, offered)

    def _reservation(self, given: Json, offered: bool) -> None:
        project, zone = _text(given, "project"), self._known_zone(given, "zone")
        name = f"projects/{project}/locations/{zone}/reservations/{_text(given, 'name')}"
        if offered:
            more: Json = {key: given[key] for key in ("resourceType", "size") if key in given}
            self._reservations.add(Call(body={"name": name, **more}))
        elif self._context.state.reservations.pop(name, None) is None:
            raise not_found(name)

    def _quota(self, given: Json, offered: bool) -> None:
        name, place, limit = *self._limit(given), given.get("limit")
        if not offered:
            if not self._quotas.remove(name, place):
                raise not_found(f"the quota of {given['name']} in {place}")
        elif not is_whole(limit):
            raise invalid("limit must be a whole number.")
        else:
            self._quotas.set(name, place, limit)

    def _limit(self, given: Json) -> tuple[str, str]:
        """Return the name and the zone of the quota that counts an accelerator type.

        `ADDRESS_METRIC` in place of the type means the external addresses of the zone's region, and
        a machine type of Compute Engine the chips of its family in that region.
        """
        zone, spot = self._known_zone(given, "zone"), given.get("spot", False)
        if spot not in (True, False, "true", "false"):  # a query holds text
            raise invalid("spot must be true or false.")
        if given.get("name") == ADDRESS_METRIC:
            return ADDRESS_METRIC, region_of(zone)
        if names := COMPUTE_QUOTAS.get(str(given.get("name")).partition("-")[0]):
            return names[spot in (True, "true")], region_of(zone)
        return limit_name(self._accelerator_type(given), spot in (True, "true")), zone

    def _accelerator_type(self, given: Json) -> AcceleratorType:
        try:
            return AcceleratorType.parse(_text(given, "name"))
        except BadInput as error:
            raise invalid(f"name must be an accelerator type: {error.what}.") from error

    def _known_zone(self, given: Json, key: str) -> str:
        zone = _text(given, key)
        if zone not in self._catalogue.zones:
            raise not_found(f"the zone {zone}")
        return zone


def _text(given: Json, key: str, pattern: re.Pattern[str] | None = None) -> str:
    value: Any = given.get(key)
    pattern = pattern or re.compile(r"[^/\s]+")
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise invalid(f"{key} must match ^{pattern.pattern}$.")
    return value
