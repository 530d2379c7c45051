"""The JSON of managed instance groups from and to our models: slices of several workers.

Such a slice has three parts. Its instance template is the record of what was asked for: it is made
first and deleted last, so that a list which shows the templates misses no part. Its workload policy
and its group follow. Source: the discovery document compute.v1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpukit.accelerators import region_of
from tpukit.errors import BadInput, Fix
from tpukit.google import instance_json
from tpukit.google.compute_machines import shape_of, type_of
from tpukit.google.instance_json import API
from tpukit.google.node_json import field, last_part
from tpukit.models import HOSTS, MANAGED, NONCE, OWNER, Slice, SliceRequest, Worker
from tpukit.text import one_line

Json = Mapping[str, Any]
Place = tuple[str, str]  #: a zone and the name of a slice

#: Discovery document, InstanceGroupManager.baseInstanceName: 52 characters before the number.
_LONGEST_NAME = 50
#: The fields of a slice that are those of worker 0, if it exists.
_OF_WORKER_0 = ("labels", "tags", "metadata", "serviceAccounts", "networkInterfaces")
_GROUP = re.compile(r".*/zones/([^/]+)/instanceGroupManagers/([^/]+)")
#: The statuses of machines that do not run, and of those that soon will not.
ENDED = ("STOPPING", "TERMINATED", "SUSPENDED")
_MAKER = re.compile(r".*/((?:zones|regions)/[^/]+/instanceGroupManagers/[^/]+)")
_TEMPLATE = re.compile(r"(?:.*/)?projects/[^/]+/((?:global|regions/[^/]+)/instanceTemplates/[^/]+)")


@dataclass(frozen=True)
class SliceParts:
    """What exists of a slice of several workers; `members` are its instances in their order."""

    zone: str
    name: str
    template: Any
    group: Any = None
    members: Sequence[Any] = ()

    @property
    def ours(self) -> bool:
        """Whether tpukit made it, so that its template and its policy belong to it alone."""
        own = part_name(self.zone, self.name)
        return _labels(self.template).get(MANAGED) == "1" and self.template.get("name") == own

    @property
    def hosts(self) -> int:
        """The number of workers that were asked for."""
        if self.group:
            return field(self.group, "targetSize", int, 0)
        text = str(_labels(self.template).get(HOSTS, ""))
        return int(text) if text.isdecimal() else 0

    @property
    def accelerator_type(self) -> str:
        machine = last_part(field(_properties(self.template), "machineType", str, ""))
        return type_of(machine, self.hosts) or machine


def part_name(zone: str, name: str) -> str:
    """Return the name of a slice's template and policy, which are of a region: demo-b."""
    return f"{name}-{zone.rpartition('-')[2]}"


def group_path(zone: str, name: str) -> str:
    """Return the path of a slice's group below its project."""
    return f"zones/{zone}/instanceGroupManagers/{name}"


def place_of_template(template: Any) -> Place:
    """Return the zone and the name of the slice that a template of tpukit is for."""
    name, _, letter = last_part(field(template, "name", str, "")).rpartition("-")
    return f"{last_part(field(template, 'region', str, ''))}-{letter}", name


def place_of_group(group: Any) -> Place:
    """Return the zone and the name of a group, which are those of its slice."""
    return last_part(field(group, "zone", str, "")), last_part(field(group, "name", str, ""))


def made_by(instance: Any) -> str:
    """Return the path of the group, of a zone or a region, that made an instance; "" for none."""
    match = _MAKER.fullmatch(instance_json.read_items(instance).get("created-by", ""))
    return match[1] if match else ""


def group_of(instance: Any) -> Place | None:
    """Return the zone and the name of the group that made an instance, or None."""
    match = _GROUP.fullmatch(instance_json.read_items(instance).get("created-by", ""))
    return (match[1], match[2]) if match else None


def is_left_by_group(instance: Any, zone: str, name: str, template: Any) -> bool:
    """Return True if the create of a template made an instance, whether or not a group has it."""
    own, nonce = instance.get("labels"), _labels(template).get(NONCE)
    same = isinstance(own, dict) and nonce is not None and own.get(NONCE) == nonce
    here = last_part(field(instance, "zone", str, "")) == zone
    called = re.fullmatch(rf"{re.escape(name)}-w-\d+", str(instance.get("name")))
    return bool(same and here and called)


def template_of(group: Any) -> str:
    """Return the path of a group's template, as `template_path`."""
    return template_path(field(group, "instanceTemplate", str, ""))


def template_path(link: str) -> str:
    """Return a template's path below its project, regions/R/instanceTemplates/N; "" if unknown."""
    match = _TEMPLATE.fullmatch(link)
    return match[1] if match else ""


def is_slice(template: Any) -> bool:
    """Return True if a template is for machines with TPUs."""
    properties = template.get("properties") if isinstance(template, dict) else None
    return instance_json.is_slice(properties)


def template_fields(request: SliceRequest) -> Json:
    """Return the JSON of the template; raise `BadInput` for what several workers cannot have."""
    shape = shape_of(request.accelerator_type)
    if len(request.name) > _LONGEST_NAME:
        raise BadInput(
            f"{request.name} is too long for a slice of several workers on Compute Engine",
            fix=Fix(note=f"use at most {_LONGEST_NAME} characters"),
        )
    if any(not disk.read_only for disk in request.data_disks):
        raise BadInput(
            "several workers can only read a data disk", fix=Fix(note="add mode=read-only to it")
        )
    properties = instance_json.properties(request, shape.machine)
    labels = {**properties["labels"], HOSTS: str(shape.hosts)}
    return {
        "name": part_name(request.zone, request.name),
        "description": _description(request.name, labels),
        "properties": {**properties, "labels": labels},
    }


def policy_fields(parts: SliceParts) -> Json:
    """Return the JSON of the workload policy, which joins the machines to one slice."""
    topology = shape_of(parts.accelerator_type).topology
    return {
        "name": part_name(parts.zone, parts.name),
        "description": parts.template["description"],
        "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": topology},
    }


def is_same_policy(has: Any, wanted: Json) -> bool:
    """Return True if a policy is for the same slice, and joins machines in the same way."""
    mine = has.get("workloadPolicy") or {}
    return is_of_same_slice(has, wanted) and wanted["workloadPolicy"].items() <= mine.items()


def is_of_same_slice(part: Any, other: Any) -> bool:
    """Return True if two parts were made for slices of one name and owner, by any create."""
    marks = [str(one.get("description")).partition(f" {NONCE}=")[0] for one in (part, other)]
    return marks[0] == marks[1] and marks[0].startswith("tpukit ")


def group_fields(parts: SliceParts, project: str) -> Json:
    """Return the JSON of the group.

    Google's page on bulk mode allows it for flex-start in each of its revisions; in one of them,
    other capacity needs the individual mode.
    """
    region = f"projects/{project}/regions/{region_of(parts.zone)}"
    own = part_name(parts.zone, parts.name)
    scheduling = field(_properties(parts.template), "scheduling", dict, {})
    bulk = scheduling.get("provisioningModel") == "FLEX_START"
    return {
        "name": parts.name,
        "description": parts.template["description"],
        "baseInstanceName": f"{parts.name}-w-###[1]",
        "targetSize": parts.hosts,
        "targetSizePolicy": {"mode": "BULK" if bulk else "INDIVIDUAL"},
        "instanceTemplate": f"{region}/instanceTemplates/{own}",
        "resourcePolicies": {"workloadPolicy": f"{region}/resourcePolicies/{own}"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        "updatePolicy": {"type": "OPPORTUNISTIC"},
    }


def read_slice(parts: SliceParts, project: str) -> Slice:
    """Return the slice of some parts, or of unreadable ones a slice without state."""
    try:
        return _slice(parts, project)
    except ValueError:
        unreadable = ("instanceGroupManager",)
        return Slice(parts.name, project, parts.zone, "", "", "", api=API, unreadable=unreadable)


def _slice(parts: SliceParts, project: str) -> Slice:
    """Return the slice of some parts; raise ValueError if one is unreadable.

    An update changes worker 0 last, so its labels, tags and metadata are the slice's.
    """
    own = parts.ours
    first = {key: parts.members[0].get(key) for key in _OF_WORKER_0} if parts.members else {}
    slice_ = instance_json.read_instance(
        {**_properties(parts.template), **first, "name": parts.name, "zone": parts.zone}, project
    )
    source = parts.template if own else parts.group
    metadata = {
        key: value
        for key, value in slice_.metadata.items()
        if key not in (*instance_json.GOOGLE_ITEMS, *instance_json.GROUP_ITEMS)
    }
    machines = [instance_json.read_instance(member, project) for member in parts.members]
    workers = [
        Worker(index, one.internal_address, one.external_address)
        for index, machine in enumerate(machines)
        for one in machine.workers
    ]
    return replace(
        slice_,
        accelerator_type=parts.accelerator_type,
        state=_state(parts),
        topology=_topology(parts),
        operation=f"projects/{project}/{group_path(parts.zone, parts.name)}" if parts.group else "",
        id=one_line(field(source, "id", str, "")),
        created=instance_json.utc(field(source, "creationTimestamp", str, "")),
        workers=tuple(workers),
        metadata=metadata,
    )


def in_order(members: Sequence[Any]) -> Sequence[Any]:
    """Return a group's instances by their worker numbers, or by name while one has no number."""
    numbers = [instance_json.read_items(one).get("agent-worker-number", "") for one in members]
    known = all(number.isdecimal() for number in numbers) and len({*numbers}) == len(numbers)
    by_name = sorted(members, key=lambda one: str(one.get("name")))
    return sorted(members, key=_number) if known else by_name


def _number(member: Any) -> int:
    return int(instance_json.read_items(member)["agent-worker-number"])


def _state(parts: SliceParts) -> str:
    """Return the state of a slice. Without its group, it is STOPPED, or has left-over machines."""
    if parts.group is None and not parts.members:
        return "STOPPED"
    if parts.group is None:
        ends = {one.get("status") for one in parts.members} == {"STOPPING"}
        return "DELETING" if ends else "REPAIRING"
    if field(field(parts.group, "currentActions", dict, {}), "deleting", int, 0):
        return "DELETING"
    status = field(parts.group, "status", dict, {})
    topologies = {field(one, "state", str, "") for one in _applied(parts)}
    states = [field(one, "status", str, "") for one in parts.members]
    ended = [state for state in states if state in ENDED]
    if ended and len(ended) == len(states):
        return "STOPPING" if "STOPPING" in states else "STOPPED"
    if "FAILED" in topologies:
        return "TERMINATED"
    if ended or "ACTIVE_DEGRADED" in topologies:
        return "REPAIRING"
    bulk = field(status, "bulkInstanceOperation", dict, {})
    settled = field(status, "isStable", bool, False) and not field(bulk, "inProgress", bool, False)
    whole = states == ["RUNNING"] * parts.hosts and topologies <= {"ACTIVE"}
    return "READY" if settled and whole and parts.hosts else "CREATING"


def _applied(parts: SliceParts) -> Sequence[Any]:
    status = field(parts.group or {}, "status", dict, {})
    return field(status, "appliedAcceleratorTopologies", list, [])


def _topology(parts: SliceParts) -> str:
    names = [one_line(field(one, "acceleratorTopology", str, "")) for one in _applied(parts)]
    return next(iter(names), "")


def _description(name: str, labels: Mapping[str, str]) -> str:
    """Return the text that marks each part as tpukit's, because a group has no labels."""
    known = [f"{key}={labels[key]}" for key in (OWNER, NONCE) if key in labels]
    return " ".join(["tpukit", f"slice={name}", *known])


def _properties(template: Any) -> Json:
    return field(template, "properties", dict, {})


def _labels(template: Any) -> Json:
    """Return a template's labels, or none if they are unreadable."""
    labels = _properties(template).get("labels")
    return labels if isinstance(labels, dict) else {}
