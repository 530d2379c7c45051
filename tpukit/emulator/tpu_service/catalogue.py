"""The catalogue: zones, accelerator types, runtime versions and reservations."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

from tpukit.accelerators import AcceleratorType, all_types, region_of
from tpukit.emulator.core.api_errors import (
    ApiError,
    Json,
    Status,
    invalid,
    is_text,
    is_whole,
    not_found,
)
from tpukit.emulator.core.places import ZONE
from tpukit.emulator.core.service_context import Call, ServiceContext, Views, listing

_OFFERED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
REGIONS: tuple[str, ...] = tuple(_OFFERED["regions"])
#: Like the real service, the emulator accepts a version that does not fit a generation.
_RUNTIME_VERSIONS: tuple[str, ...] = tuple(_OFFERED["runtime_versions"])
#: The possible ends of a zone's name.
_LETTERS = ("-a", "-b", "-c", "-d", "-e", "-f")


class Catalogue:
    """The zones, and the accelerator types and runtime versions that they offer."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    @property
    def zones(self) -> tuple[str, ...]:
        known = {*_real_zones(), ZONE, *self._context.added("zones/")}
        return tuple(sorted(z for z in known if self._context.offers(f"zones/{z}", True)))

    @property
    def regions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*REGIONS, *map(region_of, self.zones)]))

    @property
    def runtime_versions(self) -> tuple[str, ...]:
        offers = self._context.offers
        known = [*_RUNTIME_VERSIONS, *self._context.added("runtimeVersions/")]
        return tuple(v for v in dict.fromkeys(known) if offers(f"runtimeVersions/{v}", True))

    def check_zone(self, call: Call) -> None:
        """Raise `ApiError` for a zone without TPUs and for an unknown zone.

        Sources: tests/recorded/exchanges/tpu-zone-without-tpus; dstackai/gpuhunt#98, a message that
        SkyPilot looks for.
        """
        zone = call.path["zone"]
        if zone in self.zones:
            return
        if region_of(zone) in REGIONS and zone[-2:] in _LETTERS:
            raise self._context.bad_request(f'The requested zone "{zone}" is not supported.')
        text = f"Location {zone} is not found or access is unauthorized."
        raise ApiError("PERMISSION_DENIED", text)

    def in_zone(self, zone: str) -> tuple[AcceleratorType, ...]:
        return tuple(kind for kind in all_types() if self._is_offered(kind, zone))

    def by_name(self, zone: str, name: str) -> AcceleratorType | None:
        return next((kind for kind in self.in_zone(zone) if kind.name == name), None)

    def by_topology(self, zone: str, api_type: str, topology: str) -> AcceleratorType | None:
        wanted = (api_type, topology)
        return next(
            (k for k in self.in_zone(zone) if (k.facts.api_type, k.topology) == wanted), None
        )

    def _is_offered(self, kind: AcceleratorType, zone: str) -> bool:
        """Return True if a zone offers a type; the zone "-" stands for all zones.

        A user's change for this zone wins over one for all zones, and that one over Google's
        offer. A zone that a user has added offers every type.
        """
        offers = self._context.offers
        own = zone in ("-", ZONE, *kind.facts.zones) or zone not in _real_zones()
        everywhere = offers(f"acceleratorTypes/-/{kind.name}", own)
        return offers(f"acceleratorTypes/{zone}/{kind.name}", everywhere)

    def flex_start_refusal(self, zone: str, node: Json) -> Status | None:
        """Return the error of a flex-start node's create in a zone without flex-start, or None.

        Recorded: tests/recorded/exchanges/tpu-flex-start.
        """
        if node["schedulingConfig"].get("provisioningModel") != "FLEX_START":
            return None
        kind = node["acceleratorType"]
        accepted = _OFFERED["flex_start"].get(AcceleratorType.parse(kind).facts.name, ())
        if zone in accepted or region_of(zone) not in REGIONS:
            return None
        text = (
            f'FLEX_START provisioning model is not supported for accelerator type "{kind}" in '
            f'location "{zone}"'
        )
        return Status("INVALID_ARGUMENT", text)

    def workers_of(self, node: Json) -> int:
        """Return a node's number of workers; its accelerator type must be valid."""
        return AcceleratorType.parse(node["acceleratorType"]).workers

    def prefix(self, call: Call, collection: str) -> str:
        """Return the prefix of the names that a list call selects; the zone `-` means all zones."""
        if call.path["zone"] == "-":
            return f"projects/{call.project}/locations/"
        self.check_zone(call)
        return f"{call.parent}/{collection}/"

    def list_locations(self, call: Call) -> Json:
        documents = (_location(call.project, zone) for zone in self.zones)
        return listing(call, "locations", {d["name"]: d for d in documents})

    def get_location(self, call: Call) -> Json:
        self.check_zone(call)
        return _location(call.project, call.path["zone"])

    def list_types(self, call: Call) -> Json:
        documents = (
            _type(parent, kind)
            for zone, parent in self._places(call)
            for kind in self.in_zone(zone)
        )
        return listing(call, "acceleratorTypes", {d["name"]: d for d in documents})

    def get_type(self, call: Call) -> Json:
        self.check_zone(call)
        kind = self.by_name(call.path["zone"], call.path["type"])
        if kind is None:
            raise not_found(f"{call.parent}/acceleratorTypes/{call.path['type']}")
        return _type(call.parent, kind)

    def list_runtime_versions(self, call: Call) -> Json:
        documents = (_runtime(p, v) for _, p in self._places(call) for v in self.runtime_versions)
        return listing(call, "runtimeVersions", {d["name"]: d for d in documents})

    def get_runtime_version(self, call: Call) -> Json:
        self.check_zone(call)
        if call.path["runtime"] not in self.runtime_versions:
            raise not_found(f"{call.parent}/runtimeVersions/{call.path['runtime']}")
        return _runtime(call.parent, call.path["runtime"])

    def _places(self, call: Call) -> list[tuple[str, str]]:
        """Return the zones of a list call, each with the full name of its location."""
        zone, prefix = call.path["zone"], f"projects/{call.project}/locations/"
        if zone != "-":
            self.check_zone(call)
        return [(name, prefix + name) for name in (self.zones if zone == "-" else (zone,))]


@cache
def _real_zones() -> frozenset[str]:
    return frozenset(zone for kind in all_types() for zone in kind.facts.zones)


def _location(project: str, zone: str) -> Json:
    return {"name": f"projects/{project}/locations/{zone}", "locationId": zone}


def _type(parent: str, kind: AcceleratorType) -> Json:
    return {
        "name": f"{parent}/acceleratorTypes/{kind.name}",
        "type": kind.name,
        "acceleratorConfigs": [{"type": kind.facts.api_type, "topology": kind.topology}],
    }


def _runtime(parent: str, version: str) -> Json:
    return {"name": f"{parent}/runtimeVersions/{version}", "version": version}


_NAME = re.compile(
    r"projects/([^/]+)/locations/([^/]+)/reservations/([a-z]([-a-z0-9]{0,61}[a-z0-9])?)"
)


class Reservations:
    """Reservations. The emulator checks that they exist, but not how much of them is in use."""

    def __init__(self, context: ServiceContext, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue
        self._records = context.state.reservations

    def list(self, call: Call) -> Json:
        prefix = self._catalogue.prefix(call, "reservations")
        names = (name for name in self._records if name.startswith(prefix))
        return listing(call, "reservations", Views(names, self._records.__getitem__))

    def claimed(self, call: Call, name: str = "") -> Call:
        """Return a create that uses a reservation; its operation fails if none matches.

        Without a name, or with the id `-`, every reservation of the call's project and zone
        matches. Raises `ApiError` for a malformed name.
        """
        prefix = f"{call.parent}/reservations/"
        full = self._context.by_id(name) if "/" in name else prefix + (name or "-")
        if full == f"{prefix}-":
            exists = any(known.startswith(prefix) for known in self._records)
        elif match := _NAME.fullmatch(full):
            exists = full in self._records and match[2] == call.path["zone"]
        else:
            why = "must be projects/P/locations/ZONE/reservations/R"
            raise self._context.bad_request(f"reservation_name {name!r} {why}")
        # Recorded: the operation of `gcloud compute tpus tpu-vm create` on 2025-08-25.
        missing = Status("NOT_FOUND", "Reservation not found")
        return call if exists or call.failure else replace(call, failure=missing)

    def add(self, call: Call) -> Json:
        """Add `{"name": FULL_NAME, "resourceType": "v4", "size": 64}`, with the size in chips."""
        name, size = call.body.get("name"), call.body.get("size", 1)
        kind = call.body.get("resourceType", "")
        match = _NAME.fullmatch(name) if isinstance(name, str) else None
        if match is None or match[2] not in self._catalogue.zones:
            raise invalid("name must be projects/P/locations/ZONE/reservations/R of a known zone.")
        if not is_whole(size, 1) or not is_text(kind):
            raise invalid("size must be a number of chips, and resourceType a text.")
        self._records[match[0]] = {
            "name": match[0],
            "state": "ACTIVE",
            "standard": {
                "size": size,
                "capacityUnits": "CHIPS",
                "resourceType": kind,
                "interval": {"startTime": self._context.stamp()},
                "usage": {"total": "0"},
            },
        }
        return self._records[match[0]]
