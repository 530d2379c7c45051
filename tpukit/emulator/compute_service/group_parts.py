"""The parts that a managed instance group is made from: workload policies, instance templates.

Both are documents alone; a group that uses one keeps it from being deleted.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator

from tpukit.emulator.compute_service.instance_request import bad
from tpukit.emulator.compute_service.projects import (
    ComputeOperations,
    aggregated_page,
    checked_items,
    fingerprint,
    found_page,
    not_found,
)
from tpukit.emulator.core.api_errors import ApiError, Json
from tpukit.emulator.core.service_context import RESOURCE_ID, Call, ServiceContext, Views
from tpukit.emulator.core.state import Records
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.tpu_service.node_fields import check_labels, check_tags

_TOPOLOGY = re.compile(r"\d+x\d+(x\d+)?")


class GroupParts(ABC):
    """The parts of one kind: each of a region, or of the project (`global`)."""

    kind: str  #: of one document: "resourcePolicy"
    collection: str
    user: str  #: the field of a group's record that names its part
    inserted = "insert"  #: the type of the operation of an insert

    def __init__(
        self, context: ServiceContext, operations: ComputeOperations, catalogue: Catalogue
    ) -> None:
        self._context = context
        self._operations = operations
        self._catalogue = catalogue

    @property
    @abstractmethod
    def records(self) -> Records:
        """The documents by their full names."""

    @abstractmethod
    def _checked(self, body: Json) -> Json:
        """Return the fields to record; raise `ApiError` for one that Compute Engine refuses."""

    def insert(self, call: Call) -> Json:
        name = call.body.get("name", "")
        full = f"{self._place(call)}{name}"
        if begun := self._operations.repeated(call, self.inserted, full):
            return begun
        if not RESOURCE_ID.fullmatch(name):
            raise bad("name", name, f"Must be a match of regex '{RESOURCE_ID.pattern}'")
        fields = self._checked(call.body)
        if full in self.records:
            raise ApiError("ALREADY_EXISTS", f"The resource '{full}' already exists")
        described = {"description": call.body["description"]} if "description" in call.body else {}
        self.records[full] = {
            "name": name,
            "id": self._context.number(),
            "creationTimestamp": self._context.stamp(),
            **described,
            **fields,
        }
        return self._operations.begin(call, self.inserted, full)

    def get(self, call: Call) -> Json:
        return self._view(self._find(call))

    def list(self, call: Call) -> Json:
        place = self._place(call)
        mine = (name for name in self.records if name.startswith(place))
        return {"kind": f"compute#{self.kind}List", **found_page(call, Views(mine, self._view))}

    def aggregated(self, call: Call) -> Json:
        """Return the documents of all regions by `regions/REGION`, and those of `global`."""
        mine = (name for name in self.records if name.startswith(f"projects/{call.project}/"))
        page = aggregated_page(call, Views(mine, self._view), "regions", self.collection)
        return {"kind": f"compute#{self.kind}AggregatedList", **page}

    def delete(self, call: Call) -> Json:
        asked = f"{self._place(call)}{call.path['part']}"
        if begun := self._operations.repeated(call, "delete", asked):
            return begun
        full = self._find(call)
        if user := next(self._users(full), ""):
            kind = re.sub("([A-Z])", lambda match: f"_{match[1].lower()}", self.kind)
            raise ApiError(
                "INVALID_ARGUMENT",
                f"The {kind} resource '{full}' is already being used by '{user}'",
                reason="resourceInUseByAnotherResource",
            )
        begun = self._operations.begin(call, "delete", full)
        del self.records[full]
        return begun

    def named(self, link: str) -> str:
        """Return the full name of an existing part, given a link; raise `ApiError` if none has it.

        A link is `https://…/projects/…`, `projects/…`, or a path below one of these.
        """
        full = link[link.find("projects/") :] if "projects/" in link else link
        if full not in self.records:
            raise not_found(full)
        return full

    def _users(self, full: str) -> Iterator[str]:
        for name, record in self._context.state.groups.items():
            if record.get(self.user) == full:
                yield name

    def _place(self, call: Call) -> str:
        region = call.path.get("region")
        if region and region not in self._catalogue.regions:
            raise not_found(f"projects/{call.project}/regions/{region}")
        place = f"regions/{region}" if region else "global"
        return f"projects/{call.project}/{place}/{self.collection}/"

    def _find(self, call: Call) -> str:
        full = f"{self._place(call)}{call.path['part']}"
        if full not in self.records:
            raise not_found(full)
        return full

    def _view(self, full: str) -> Json:
        base, place = self._context.compute_base, full.rsplit("/", 2)[0]
        region = {"region": base + place} if "/regions/" in place else {}
        own = {"kind": f"compute#{self.kind}", "selfLink": base + full}
        return {**self.records[full], **own, **region}


class WorkloadPolicies(GroupParts):
    """Resource policies that join the hosts of a group to one slice; no other kind is served."""

    kind, collection, user = "resourcePolicy", "resourcePolicies", "policy"

    @property
    def records(self) -> Records:
        return self._context.state.policies

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

    @property
    def records(self) -> Records:
        return self._context.state.templates

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
