"""The managed instance group in a client's request, checked, with the hosts that it asks for.

Sources of the refusals: ../shared/reference/compute-engine.md, section 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tpukit.accelerators import AcceleratorType, region_of
from tpukit.emulator.compute_service.compute_operations import bad, check_name
from tpukit.emulator.compute_service.group_parts import InstanceTemplates, WorkloadPolicies
from tpukit.emulator.compute_service.instance_request import parse_instance
from tpukit.emulator.compute_service.machine_types import MachineType, MachineTypes
from tpukit.emulator.core.api_errors import Json, invalid
from tpukit.emulator.core.service_context import Call, ServiceContext, project_number

#: Discovery document, InstanceGroupManager.baseInstanceName.
_BASE = re.compile(r"[a-z](([-a-z0-9]{0,57})|([-a-z0-9]{0,51}-#{1,10}(\[[0-9]{1,10}\])?))")
_NUMBERED = re.compile(r"(.*-)(#+)(?:\[(\d+)\])?")
_KEPT = ("description", "instanceLifecyclePolicy", "updatePolicy", "targetSizePolicy")


@dataclass(frozen=True)
class GroupRequest:
    """A group to record, and its instances in the order of their names.

    `kind` is the slice that a policy joins them to; without one, each host is a slice of its own.
    """

    group: Json
    template: str
    policy: str
    instances: tuple[Json, ...]
    machine: MachineType
    kind: AcceleratorType | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(instance["name"] for instance in self.instances)


@dataclass(frozen=True)
class GroupRequests:
    """Reads the requests of one emulator."""

    _context: ServiceContext
    _machines: MachineTypes
    _policies: WorkloadPolicies
    _templates: InstanceTemplates

    def parse(self, call: Call) -> GroupRequest:
        """Return the group that an insert asks for; raise `ApiError` if Compute Engine refuses."""
        body, size = call.body, call.body.get("targetSize", 0)
        name, base = body.get("name", ""), body.get("baseInstanceName") or body.get("name", "")
        check_name(name)
        if not _BASE.fullmatch(base):
            raise bad("baseInstanceName", base, f"Must be a match of regex '{_BASE.pattern}'")
        if not body.get("instanceTemplate"):
            raise bad("instanceTemplate", "", "Must be specified.")
        template = self._templates.named(body["instanceTemplate"])
        policy = self._policy(call)
        properties = self._templates.records[template]["properties"]
        made = [
            self._instance(call, properties, template, short) for short in self._names(base, size)
        ]
        if not made:
            raise bad("targetSize", size, "The emulator makes groups of one host or more.")
        instances, machine = tuple(instance for instance, _ in made), made[0][1]
        self._check_mode(body, instances[0]["scheduling"]["provisioningModel"])
        kept = {key: body[key] for key in _KEPT if key in body}
        group = {**kept, "name": name, "baseInstanceName": base, "targetSize": size}
        kind = self._kind(machine, policy, size)
        return GroupRequest(group, template, policy, instances, machine, kind)

    def _policy(self, call: Call) -> str:
        """Return the full name of the workload policy, which has to be of the zone's region."""
        link = (call.body.get("resourcePolicies") or {}).get("workloadPolicy", "")
        policy = self._policies.named(link) if link else ""
        if policy and policy.split("/")[3] != region_of(call.path["zone"]):
            raise bad("resourcePolicies.workloadPolicy", link, "It is of another region.")
        return policy

    def _kind(self, machine: MachineType, policy: str, size: int) -> AcceleratorType | None:
        document = self._policies.records[policy]["workloadPolicy"] if policy else {}
        topology = document.get("acceleratorTopology", "")
        if not topology:
            return None
        kind = machine.joined(topology)
        if kind is None:
            why = f"The machine type {machine.name} does not support it."
            raise bad("workloadPolicy.acceleratorTopology", topology, why)
        if kind.workers != size:
            raise invalid(
                f"Target size should be {kind.workers} for given accelerator topology "
                f"but was {size}."
            )
        return kind

    def _instance(
        self, call: Call, properties: Json, template: str, name: str
    ) -> tuple[Json, MachineType]:
        """Return one instance; the group writes two items into its metadata."""
        body = {**properties, "name": name}
        instance, machine = parse_instance(self._context, self._machines, replace(call, body=body))
        project = f"projects/{project_number(call.project)}"
        group = f"zones/{call.path['zone']}/instanceGroupManagers/{call.body['name']}"
        items = {
            "created-by": f"{project}/{group}",
            "instance-template": f"{project}/{template.split('/', 2)[2]}",
        }
        own = [{"key": key, "value": value} for key, value in items.items()]
        return {**instance, "metadata": [*instance["metadata"], *own]}, machine

    def _names(self, base: str, size: int) -> list[str]:
        """Return the names of a group's instances: `vm-###[1]` begins with `vm-001`."""
        match = _NUMBERED.fullmatch(base)
        if match is None:
            return [f"{base}-{self._context.random.getrandbits(16):04x}" for _ in range(size)]
        first, width = int(match[3] or 1), len(match[2])
        return [f"{match[1]}{number:0{width}}" for number in range(first, first + size)]

    def _check_mode(self, body: Json, model: str) -> None:
        mode = (body.get("targetSizePolicy") or {}).get("mode", "INDIVIDUAL")
        action = (body.get("instanceLifecyclePolicy") or {}).get("defaultActionOnFailure", "REPAIR")
        if mode == "BULK" and model == "FLEX_START" and action != "DO_NOTHING":
            why = "FLEX_START needs DO_NOTHING in bulk mode."
            raise bad("instanceLifecyclePolicy.defaultActionOnFailure", action, why)
