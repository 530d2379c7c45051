"""What may be asked for and where: zones, accelerator types, runtime versions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from tpukit import accelerators
from tpukit.accelerators import AcceleratorType
from tpukit.emulator.context import Call, listing
from tpukit.emulator.errors import ApiError, Json, error_info

#: Names seen in the Cloud TPU page "TPU software versions" and in use on the v6e generation. A
#: runtime version that does not fit a generation is accepted, as by the real service.
RUNTIME_VERSIONS = (
    "tpu-ubuntu2204-base",
    "tpu-vm-base",
    "tpu-vm-pt-1.13",
    "tpu-vm-pt-2.0",
    "tpu-vm-tf-2.16.1",
    "tpu-vm-tf-2.16.1-pjrt",
    "tpu-vm-tf-2.16.1-pod",
    "tpu-vm-tf-2.16.1-pod-pjrt",
    "tpu-vm-tf-2.17.0-pjrt",
    "tpu-vm-tf-2.17.0-pod-pjrt",
    "v2-alpha-tpuv5",
    "v2-alpha-tpuv5-lite",
    "v2-alpha-tpuv6e",
    "v6e-ubuntu-2404",
)

#: The emulator's own zone, the only invented one: it offers every accelerator type. In all others a
#: type is offered where the real service offers it.
EVERYTHING_ZONE = "emulator-local1-a"

#: google.cloud.tpu.v2.AcceleratorConfig.Type; google-cloud-tpu sends the numbers over REST.
TYPE_NUMBERS = {2: "V2", 4: "V3", 7: "V4", 9: "V5LITE_POD", 10: "V5P", 11: "V6E"}


class Catalogue:
    """The zones of the API and what each of them offers."""

    def __init__(self, types: Iterable[AcceleratorType] = ()) -> None:
        self._given = tuple(types)

    @cached_property
    def _types(self) -> tuple[AcceleratorType, ...]:
        return self._given or accelerators.all_types()

    @cached_property
    def zones(self) -> tuple[str, ...]:
        real = {zone for kind in self._types for zone in kind.zones}
        return tuple(sorted({EVERYTHING_ZONE, *real}))

    def check_zone(self, call: Call) -> None:
        """Refuse a zone that does not exist in the words of the real service.

        Source: the public error report quoted for v4 zones, "(or it may not exist)".
        """
        zone = call.path["zone"]
        if zone in self.zones:
            return
        consumer = f"projects/{call.project}"
        raise ApiError(
            "PERMISSION_DENIED",
            f"Permission denied on 'locations/{zone}' (or it may not exist).",
            [
                error_info(
                    "LOCATION_POLICY_VIOLATED",
                    consumer=consumer,
                    location=zone,
                    service="tpu.googleapis.com",
                )
            ],
        )

    def in_zone(self, zone: str) -> tuple[AcceleratorType, ...]:
        return tuple(k for k in self._types if zone in ("-", EVERYTHING_ZONE, *k.zones))

    def by_name(self, zone: str, name: str) -> AcceleratorType | None:
        return next((kind for kind in self.in_zone(zone) if kind.name == name), None)

    def by_topology(self, zone: str, api_type: str, topology: str) -> AcceleratorType | None:
        wanted = (api_type, topology)
        return next((k for k in self.in_zone(zone) if (k.api_type, k.topology) == wanted), None)

    def workers_of(self, zone: str, node: Json) -> int:
        """Return the number of workers that a node, checked before, has."""
        kind = self.by_name(zone, node["acceleratorType"])
        return kind.workers if kind else 1

    def prefix(self, call: Call, collection: str) -> str:
        """Return how the names of a list call's resources start; the zone `-` is every zone."""
        if call.path["zone"] == "-":
            return f"projects/{call.project}/locations/"
        self.check_zone(call)
        return f"{call.parent}/{collection}/"

    def list_locations(self, call: Call) -> Json:
        return listing(call, "locations", ((z, _location(call.project, z)) for z in self.zones))

    def get_location(self, call: Call) -> Json:
        self.check_zone(call)
        return _location(call.project, call.path["zone"])

    def list_types(self, call: Call) -> Json:
        documents = (
            _type(f"projects/{call.project}/locations/{zone}", kind)
            for zone in self._asked_zones(call)
            for kind in self.in_zone(zone)
        )
        return listing(call, "acceleratorTypes", ((d["name"], d) for d in documents))

    def get_type(self, call: Call) -> Json:
        self.check_zone(call)
        kind = self.by_name(call.path["zone"], call.path["type"])
        if kind is None:
            raise _not_found(f"{call.parent}/acceleratorTypes/{call.path['type']}")
        return _type(call.parent, kind)

    def list_runtime_versions(self, call: Call) -> Json:
        documents = (
            _runtime(f"projects/{call.project}/locations/{zone}", version)
            for zone in self._asked_zones(call)
            for version in RUNTIME_VERSIONS
        )
        return listing(call, "runtimeVersions", ((d["name"], d) for d in documents))

    def get_runtime_version(self, call: Call) -> Json:
        self.check_zone(call)
        if call.path["runtime"] not in RUNTIME_VERSIONS:
            raise _not_found(f"{call.parent}/runtimeVersions/{call.path['runtime']}")
        return _runtime(call.parent, call.path["runtime"])

    def _asked_zones(self, call: Call) -> tuple[str, ...]:
        if call.path["zone"] == "-":
            return self.zones
        self.check_zone(call)
        return (call.path["zone"],)


def _not_found(name: str) -> ApiError:
    return ApiError("NOT_FOUND", f"Resource '{name}' was not found")


def _location(project: str, zone: str) -> Json:
    return {"name": f"projects/{project}/locations/{zone}", "locationId": zone}


def _type(parent: str, kind: AcceleratorType) -> Json:
    return {
        "name": f"{parent}/acceleratorTypes/{kind.name}",
        "type": kind.name,
        "acceleratorConfigs": [{"type": kind.api_type, "topology": kind.topology}],
    }


def _runtime(parent: str, version: str) -> Json:
    return {"name": f"{parent}/runtimeVersions/{version}", "version": version}
