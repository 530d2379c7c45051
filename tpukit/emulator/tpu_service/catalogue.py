"""What there is and where: zones, accelerator types, runtime versions, reservations."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from tpukit.accelerators import AcceleratorType, all_types
from tpukit.emulator.core.api_errors import (
    ApiError,
    Json,
    Status,
    invalid,
    is_text,
    is_whole,
    not_found,
)
from tpukit.emulator.core.places import REGIONS, ZONE
from tpukit.emulator.core.service_context import Call, ServiceContext, Views, listing

#: Names of the Cloud TPU page "TPU software versions", in use on v6e, and in public recordings. A
#: runtime version that does not fit a generation is accepted, as by the real service.
_RUNTIME_VERSIONS = (
    "tpu-ubuntu2204-base",
    "tpu-vm-base",
    "tpu-vm-cos-stable",
    "tpu-vm-pt-1.13",
    "tpu-vm-pt-2.0",
    "tpu-vm-tf-2.16.1",
    "tpu-vm-tf-2.16.1-pjrt",
    "tpu-vm-tf-2.16.1-pod",
    "tpu-vm-tf-2.16.1-pod-pjrt",
    "tpu-vm-tf-2.17.0-pjrt",
    "tpu-vm-tf-2.17.0-pod-pjrt",
    "tpu-vm-tf-2.18.0-pjrt",
    "tpu-vm-v4-base",
    "v2-alpha-tpuv5",
    "v2-alpha-tpuv5-lite",
    "v2-alpha-tpuv6e",
    "v6e-ubuntu-2404",
)


#: How the zones of a region end.
_LETTERS = ("-a", "-b", "-c", "-d", "-e", "-f")
#: Where requests with flex-start were accepted, by generation: public reports of 2026.
_FLEX_START = {
    "v6e": ("us-east5-a", "us-east5-b", "europe-west4-a"),
    "v5litepod": ("us-west4-a",),
}


class Catalogue:
    """The zones of the API and what each of them offers."""

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
        """Refuse a zone without TPUs, and one that does not exist, as the real service does.

        Sources: tests/recorded/exchanges/tpu-zone-without-tpus; dstackai/gpuhunt#98, by whose words
        SkyPilot knows that nothing is there.
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
        """Tell what a user said of the type in this zone, else in all, else what Google offers.

        A zone that a user has added offers every type.
        """
        offers = self._context.offers
        own = zone in ("-", ZONE, *kind.facts.zones) or zone not in _real_zones()
        everywhere = offers(f"acceleratorTypes/-/{kind.name}", own)
        return offers(f"acceleratorTypes/{zone}/{kind.name}", everywhere)

    def flex_start_refusal(self, zone: str, node: Json) -> Status | None:
        """Return the error with which the create of a flex-start node ends in a wrong zone.

        Recorded: tests/recorded/exchanges/tpu-flex-start.
        """
        if node["schedulingConfig"].get("provisioningModel") != "FLEX_START":
            return None
        kind = node["acceleratorType"]
        accepted = _FLEX_START.get(AcceleratorType.parse(kind).facts.name, ())
        if zone in accepted or region_of(zone) not in REGIONS:
            return None
        text = (
            f'FLEX_START provisioning model is not supported for accelerator type "{kind}" in '
            f'location "{zone}"'
        )
        return Status("INVALID_ARGUMENT", text)

    def workers_of(self, node: Json) -> int:
        """Return the number of workers that a node, checked before, has."""
        return AcceleratorType.parse(node["acceleratorType"]).workers

    def prefix(self, call: Call, collection: str) -> str:
        """Return how the names of a list call's resources start; the zone `-` is every zone."""
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
        """Return each zone that a list call is about, and the name of its location."""
        zone, prefix = call.path["zone"], f"projects/{call.project}/locations/"
        if zone != "-":
            self.check_zone(call)
        return [(each, prefix + each) for each in (self.zones if zone == "-" else (zone,))]


def region_of(zone: str) -> str:
    """Return the region of a zone: `us-central1` of `us-central1-a`."""
    return zone.rpartition("-")[0]


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
    """Reserved capacity. It has to exist and counts nothing: the emulator has room for all."""

    def __init__(self, context: ServiceContext, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue
        self._records = context.state.reservations

    def list(self, call: Call) -> Json:
        prefix = self._catalogue.prefix(call, "reservations")
        found = (name for name in self._records if name.startswith(prefix))
        return listing(call, "reservations", Views(found, self._records.__getitem__))

    def claimed(self, call: Call, name: str = "") -> Call:
        """Return a create that uses a reservation: it fails later if there is no such one.

        Without a name, or with the id `-`, any reservation of the call's project and zone will do.
        Raises `ApiError` for a name of another form.
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
        # Recorded: `gcloud compute tpus tpu-vm create` of 2025-08-25, error of the operation.
        missing = Status("NOT_FOUND", "Reservation not found")
        return call if exists or call.failure else replace(call, failure=missing)

    def add(self, call: Call) -> Json:
        """Make `{"name": FULL_NAME, "resourceType": "v4", "size": 64}`, a size in chips."""
        name, size = call.body.get("name"), call.body.get("size", 1)
        kind = call.body.get("resourceType", "")
        found = _NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None or found[2] not in self._catalogue.zones:
            raise invalid("name must be projects/P/locations/ZONE/reservations/R of a known zone.")
        if not is_whole(size, 1) or not is_text(kind):
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
        return self._records[found[0]]
