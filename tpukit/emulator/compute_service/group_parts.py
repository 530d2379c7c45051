"""The parts that a managed instance group is made from: workload policies, instance templates.

Both are documents alone; a group that uses one keeps it from being deleted.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from tpukit.emulator.compute_service.collection import DocumentCollection
from tpukit.emulator.compute_service.compute_operations import bad, not_found
from tpukit.emulator.compute_service.projects import checked_items, fingerprint
from tpukit.emulator.core.api_errors import Json
from tpukit.emulator.core.service_context import Call
from tpukit.emulator.tpu_service.node_fields import check_labels, check_tags

_TOPOLOGY = re.compile(r"\d+x\d+(x\d+)?")


class GroupParts(DocumentCollection):
    """The parts of one kind: each of a region, or of the project (`global`)."""

    user: ClassVar[str]  #: the field of a group's record that names its part

    def named(self, link: str) -> str:
        """Return the full name of an existing part, given a link; raise `ApiError` if none has it.

        A link is `https://…/projects/…`, `projects/…`, or a path below one of these.
        """
        full = link[link.find("projects/") :] if "projects/" in link else link
        if full not in self.records:
            raise not_found(full)
        return full

    def _fields(self, call: Call) -> Json:
        described = {"description": call.body["description"]} if "description" in call.body else {}
        return {**described, **self._checked(call.body)}

    @abstractmethod
    def _checked(self, body: Json) -> Json:
        """Return the fields to record; raise `ApiError` for one that Compute Engine refuses."""

    def _users(self, full: str) -> Iterable[str]:
        groups = self._context.state.groups.items()
        return (name for name, record in groups if record.get(self.user) == full)


class WorkloadPolicies(GroupParts):
    """Resource policies that join the hosts of a group to one slice; no other kind is served."""

    kind, collection, user = "resourcePolicy", "resourcePolicies", "policy"

    def _checked(self, body: Json) -> Json:
        policy = body.get("workloadPolicy")
        if not isinstance(policy, dict):
            raise bad("workloadPolicy", "", "The emulator serves workload policies alone.")
        topology = policy.get("acceleratorTopology", "")
        if topology and not _TOPOLOGY.fullmatch(topology):
            raise bad("workloadPolicy.acceleratorTopology", topology, "Must be like 4x4 or 2x2x2.")
        if not policy.get("type"):
            raise bad("workloadPolicy.type", "", "Must be specified.")
        return {"workloadPolicy": policy, "status": "READY"}


class InstanceTemplates(GroupParts):
    """Instance templates; an insert checks little, because a group's create checks the rest."""

    kind, collection, user = "instanceTemplate", "instanceTemplates", "template"
    # Recorded: ../shared/data/recorded/compute/instancetemplate-crud.log
    inserted = "compute.instanceTemplates.insert"

    def _checked(self, body: Json) -> Json:
        given = body.get("properties") or {}
        machine = given.get("machineType", "")
        if not machine or "/" in machine:
            raise bad("properties.machineType", machine, "Must be the name of a machine type.")
        if not given.get("disks"):
            raise bad("properties.disks", "", "No disks are specified.")
        check_labels(given.get("labels") or {})
        check_tags((given.get("tags") or {}).get("items") or [])
        items = checked_items(given.get("metadata") or {})
        metadata = {"kind": "compute#metadata", "fingerprint": fingerprint(items)}
        interfaces = given.get("networkInterfaces") or []
        return {
            "properties": {
                **given,
                "metadata": {**metadata, **({"items": items} if items else {})},
                "scheduling": _scheduling(given.get("scheduling") or {}),
                "disks": [_disk(number, disk) for number, disk in enumerate(given["disks"])],
                "networkInterfaces": [_interface(*pair) for pair in enumerate(interfaces)],
            }
        }


def _scheduling(given: Json) -> Json:
    """Return a Scheduling with the defaults of its model."""
    model = given.get("provisioningModel", "STANDARD")
    default: Json = {"automaticRestart": model == "STANDARD", "preemptible": model == "SPOT"}
    if model == "STANDARD":
        default["onHostMaintenance"] = "MIGRATE"
    return {**default, **given}


def _disk(number: int, disk: Json) -> Json:
    name = {"deviceName": "boot"} if disk.get("boot") else {}
    return {"kind": "compute#attachedDisk", "index": number, **name, **disk}


def _interface(number: int, interface: Json) -> Json:
    shown = {"kind": "compute#networkInterface", "name": f"nic{number}", **interface}
    if configs := interface.get("accessConfigs"):
        shown["accessConfigs"] = [{"kind": "compute#accessConfig", **one} for one in configs]
    return shown
