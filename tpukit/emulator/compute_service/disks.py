"""The disks of a project, without their content."""

from __future__ import annotations

from collections.abc import Iterator

from tpukit.emulator.compute_service.projects import (
    ComputeOperations,
    aggregated_page,
    fingerprint,
    found_page,
    not_found,
)
from tpukit.emulator.core.api_errors import ApiError, Json, invalid
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import RESOURCE_ID, Call, ServiceContext, Views
from tpukit.emulator.tpu_service.catalogue import Catalogue

#: The default size of a disk, in GB.
_DEFAULT_SIZE = "500"
#: Compute Engine documentation, "Disk types": 64 TiB, in GB.
_LARGEST_SIZE = 65_536
_OWN = ("id", "creationTimestamp", "selfLink", "status", "zone")


class Disks:
    """The disks of every project and zone. Nodes may name disks that do not exist here."""

    def __init__(
        self, context: ServiceContext, operations: ComputeOperations, catalogue: Catalogue
    ) -> None:
        self._context = context
        self._operations = operations
        self._catalogue = catalogue
        self._records = context.state.disks

    def insert(self, call: Call) -> Json:
        name, zone = call.body.get("name", ""), call.path["zone"]
        if zone not in self._catalogue.zones:
            raise not_found(f"projects/{call.project}/zones/{zone}")
        if not RESOURCE_ID.fullmatch(name):
            why = f"Must be a match of regex '{RESOURCE_ID.pattern}'"
            raise invalid(f"Invalid value for field 'resource.name': '{name}'. {why}")
        size = call.body.get("sizeGb", _DEFAULT_SIZE)
        if not 0 < int(size) <= _LARGEST_SIZE:
            why = f"Must be from 1 to {_LARGEST_SIZE}."
            raise invalid(f"Invalid value for field 'resource.sizeGb': '{size}'. {why}")
        full = f"{_place(call)}{name}"
        if begun := self._operations.repeated(call, "insert", full):
            return begun
        if full in self._records:
            raise ApiError("ALREADY_EXISTS", f"The resource '{full}' already exists")
        kept = {key: value for key, value in call.body.items() if key not in _OWN}
        created = timestamp(self._context.now())
        place = self._context.compute_base + full.rpartition("/disks/")[0]
        defaults = {"sizeGb": _DEFAULT_SIZE, "type": f"{place}/diskTypes/pd-standard"}
        defaults["physicalBlockSizeBytes"] = "4096"
        own = {"id": self._context.number(), "creationTimestamp": created}
        self._records[full] = {**defaults, **kept, **own}
        return self._operations.begin(call, "insert", full)

    def get(self, call: Call) -> Json:
        return self._view(self._find(call))

    def list(self, call: Call) -> Json:
        place = _place(call)
        mine = (name for name in self._records if name.startswith(place))
        return {"kind": "compute#diskList", **found_page(call, Views(mine, self._view))}

    def aggregated(self, call: Call) -> Json:
        """Return the disks of all zones, by `zones/ZONE`."""
        prefix = f"projects/{call.project}/zones/"
        mine = (name for name in self._records if name.startswith(prefix))
        return {
            "kind": "compute#diskAggregatedList",
            **aggregated_page(call, Views(mine, self._view), "zones", "disks"),
        }

    def delete(self, call: Call) -> Json:
        """Delete a disk that no node uses."""
        asked = f"{_place(call)}{call.path['disk']}"
        if begun := self._operations.repeated(call, "delete", asked):
            return begun
        full = self._find(call)
        if user := next(self._users(full), ""):
            raise ApiError(
                "INVALID_ARGUMENT",
                f"The disk resource '{full}' is already being used by '{user}'",
                reason="resourceInUseByAnotherResource",
            )
        begun = self._operations.begin(call, "delete", full)
        del self._records[full]
        return begun

    def _users(self, full: str) -> Iterator[str]:
        for name, record in self._context.state.nodes.items():
            if any(disk["sourceDisk"] == full for disk in record["node"].get("dataDisks", ())):
                yield name
        for name, record in self._context.state.instances.items():
            if any(disk["source"] == full for disk in record["instance"]["disks"]):
                yield name

    def _find(self, call: Call) -> str:
        full = f"{_place(call)}{call.path['disk']}"
        if full not in self._records:
            raise not_found(full)
        return full

    def _view(self, full: str) -> Json:
        base = self._context.compute_base
        zone = full.rpartition("/disks/")[0]
        record = self._records[full]
        own = {"zone": base + zone, "selfLink": base + full, "status": "READY"}
        own["labelFingerprint"] = fingerprint(record.get("labels", {}))
        return {"kind": "compute#disk", **record, **own}


def _place(call: Call) -> str:
    return f"projects/{call.project}/zones/{call.path['zone']}/disks/"
