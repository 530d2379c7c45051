"""The disks of a project, without their content."""

from __future__ import annotations

from collections.abc import Iterator

from tpukit.emulator.compute_service.collection import DocumentCollection
from tpukit.emulator.compute_service.compute_operations import bad, scope_of
from tpukit.emulator.compute_service.projects import fingerprint
from tpukit.emulator.core.api_errors import Json
from tpukit.emulator.core.service_context import Call

#: The default size of a disk, in GB.
_DEFAULT_SIZE = "500"
#: Compute Engine documentation, "Disk types": 64 TiB, in GB.
_LARGEST_SIZE = 65_536
_OWN = ("id", "creationTimestamp", "selfLink", "status", "zone")


class Disks(DocumentCollection):
    """The disks of every project and zone. Nodes may name disks that do not exist here."""

    kind, collection = "disk", "disks"

    def view(self, full: str) -> Json:
        disk = super().view(full)
        labels = fingerprint(disk.get("labels", {}))
        return {**disk, "status": "READY", "labelFingerprint": labels}

    def _fields(self, call: Call) -> Json:
        size = call.body.get("sizeGb", _DEFAULT_SIZE)
        if not 0 < int(size) <= _LARGEST_SIZE:
            raise bad("sizeGb", size, f"Must be from 1 to {_LARGEST_SIZE}.")
        return {
            "sizeGb": _DEFAULT_SIZE,
            "type": f"{self._context.compute_base}{scope_of(call)}/diskTypes/pd-standard",
            "physicalBlockSizeBytes": "4096",
            **{key: value for key, value in call.body.items() if key not in _OWN},
        }

    def _users(self, full: str) -> Iterator[str]:
        for name, record in self._context.state.nodes.items():
            if any(disk["sourceDisk"] == full for disk in record["node"].get("dataDisks", ())):
                yield name
        for name, record in self._context.state.instances.items():
            if any(disk["source"] == full for disk in record["instance"]["disks"]):
                yield name
