"""Managed instance groups: they make all their hosts at once, or none, and end them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpukit.emulator.compute_service.capacity_errors import failed, quota_error, stockout
from tpukit.emulator.compute_service.collection import Collection
from tpukit.emulator.compute_service.compute_operations import (
    already_exists,
    found_page,
    not_ready,
)
from tpukit.emulator.compute_service.group_request import GroupRequest, GroupRequests
from tpukit.emulator.compute_service.instance_store import InstanceStore, SlicePlace
from tpukit.emulator.compute_service.projects import fingerprint
from tpukit.emulator.core.api_errors import Json
from tpukit.emulator.core.service_context import Call, Views

#: The actions of a group on an instance, by the instance's status; NONE is left out.
_ACTIONS = {"PENDING": "CREATING", "PROVISIONING": "CREATING", "STAGING": "CREATING"}


@dataclass(frozen=True)
class InstanceGroups(Collection):
    """The managed instance groups of every project and zone.

    A record has the group, its parts, the full names of its instances, and `error` if it could not
    make them. Such a group goes on without instances until it is deleted, because Compute Engine
    tries again.
    """

    kind, collection = "instanceGroupManager", "instanceGroupManagers"

    _requests: GroupRequests
    _store: InstanceStore

    def insert(self, call: Call) -> Json:
        full = f"{self._place(call)}{call.body.get('name', '')}"
        if begun := self._operations.repeated(call, "insert", full):
            return begun
        request = self._requests.parse(call)
        place = f"{full.rpartition('/instanceGroupManagers/')[0]}/instances"
        members = [f"{place}/{name}" for name in request.names]
        for name in (full, *members):
            if name in self.records or name in self._store:
                raise already_exists(name)
        error = self._error(call, request)
        self.records[full] = {
            "group": {**request.group, "creationTimestamp": self._context.stamp()},
            "id": self._context.number(),
            "template": request.template,
            "policy": request.policy,
            "topology": request.kind.topology if request.kind else "",
            "members": members,
            "checked": self._context.stamp(),
            **({"error": error} if error else {}),
        }
        if error is None:
            self._make(call, full, request, members)
        return self._operations.begin(call, "insert", full)

    def delete(self, call: Call) -> Json:
        """Begin to delete a group with its instances."""
        if begun := self._operations.repeated(call, "delete", self._full_name(call)):
            return begun
        name = self._find(call)
        if "ends" in self.records[name]:
            raise not_ready(name)
        seconds = self._context.timing.change
        if call.failure:
            error = {"code": call.failure.status, "message": call.failure.message}
            return self._operations.begin(call, "delete", name, seconds, error)
        for member in self._members(name):
            self._store.remove(replace(call, query={}), member)
        self.records.change(name, ends=self._context.now() + seconds)
        return self._operations.begin(call, "delete", name, seconds)

    def list_members(self, call: Call) -> Json:
        """Return the managed instances, or those that the group could not make."""
        name = self._find(call)
        record = self.records[name]
        shown = record["members"] if "error" in record else self._members(name)
        page = found_page(call, Views(shown, lambda member: self._member(name, member)))
        page["managedInstances"] = page.pop("items", [])
        return page

    def list_errors(self, call: Call) -> Json:
        record = self.records[self._find(call)]
        if "error" not in record:
            return {}
        error = {key: record["error"][key] for key in ("code", "message")}
        shown = {"timestamp": record["checked"], "error": error}
        return {"items": [{**shown, "instanceActionDetails": {"action": "CREATING"}}]}

    def list_groups(self, call: Call) -> Json:
        """Return the instance groups that the managed ones fill."""
        mine = Views(self._names(self._place(call)), self._instance_group)
        return {"kind": "compute#instanceGroupList", **found_page(call, mine)}

    def list_autoscalers(self, call: Call) -> Json:
        """Return none, because the emulator has no autoscalers."""
        self._place(call)
        return {"kind": "compute#autoscalerList"}

    def advance(self) -> None:
        """Remove the groups whose deletion is due, and note those whose hosts all run."""
        for name, record in list(self.records.items()):
            statuses = [self._store.status(member) for member in record["members"]]
            if "ends" in record and record["ends"] <= self._context.now():
                del self.records[name]
            elif "active" not in record and {*statuses} == {"RUNNING"}:
                self.records.change(name, active=True)

    def first_instance(self, text: str) -> str:
        """Return the full name of the first instance of the group with this short name, or ""."""
        for name, record in self.records.items():
            if name.endswith(f"/instanceGroupManagers/{text}") and self._members(name):
                return str(record["members"][0])
        return ""

    def _make(self, call: Call, full: str, request: GroupRequest, members: Sequence[str]) -> None:
        for index, (member, instance) in enumerate(zip(members, request.instances, strict=True)):
            kind, names = request.machine.accelerator, (instance["name"],)
            place = SlicePlace(kind, names)
            if request.kind:
                place = SlicePlace(request.kind, request.names, index, full)
            self._store.add(replace(call, query={}), member, instance, place)

    def _error(self, call: Call, request: GroupRequest) -> Json | None:
        """Return why the hosts cannot be made, or None."""
        first, count = request.instances[0], len(request.instances)
        error = quota_error(self._context, call, first, count)
        if error is None and call.failure:
            error = failed(call, call.failure, request.machine)
        flexible = first["scheduling"]["provisioningModel"] == "FLEX_START"
        if error is None and call.delay and not flexible:
            error = stockout(call, request.machine)
        return error

    def view(self, full: str) -> Json:
        base, record = self._context.compute_base, self.records[full]
        place, short = full.split("/instanceGroupManagers/")
        template, size = base + record["template"], record["group"]["targetSize"]
        policy = {"workloadPolicy": base + record["policy"]} if record["policy"] else {}
        return {
            "kind": "compute#instanceGroupManager",
            **record["group"],
            "id": record["id"],
            "zone": base + place,
            "instanceTemplate": template,
            "versions": [{"instanceTemplate": template, "targetSize": {"calculated": size}}],
            "instanceGroup": f"{base}{place}/instanceGroups/{short}",
            **({"resourcePolicies": policy} if policy else {}),
            "currentActions": self._actions(full),
            "status": self._status(full),
            "fingerprint": fingerprint(record["group"]),
            "selfLink": base + full,
        }

    def _actions(self, name: str) -> dict[str, int]:
        record, there = self.records[name], self._members(name)
        if "ends" in record:
            return {"deleting": len(there) or 1}
        statuses = map(self._store.status, there)
        creating = sum(_ACTIONS.get(status) == "CREATING" for status in statuses)
        return {
            "creating": creating + len(record["members"]) * ("error" in record),
            "none": len(there) - creating,
        }

    def _status(self, name: str) -> Json:
        record, there = self.records[name], self._members(name)
        counts = Counter(self._store.status(member).lower() for member in there)
        busy = self._actions(name)
        stable = not (busy.get("creating") or busy.get("deleting") or counts["stopping"])
        error = {"error": {"errors": [_shown(record["error"])]}} if "error" in record else {}
        bulk = (record["group"].get("targetSizePolicy") or {}).get("mode") == "BULK"
        progress = {
            "inProgress": bool(busy.get("creating")),
            "lastProgressCheck": {"timestamp": record["checked"], **error},
        }
        topology = {"acceleratorTopology": record["topology"], "state": self._topology_state(name)}
        missing = len(record["members"]) - len(there)
        return {
            "isStable": stable,
            "versionTarget": {"isReached": stable},
            "currentInstanceStatuses": {**counts, **({"nonExistent": missing} if missing else {})},
            **({"bulkInstanceOperation": progress} if bulk else {}),
            **({"appliedAcceleratorTopologies": [topology]} if record["topology"] else {}),
        }

    def _topology_state(self, name: str) -> str:
        record = self.records[name]
        running = [self._store.status(member) for member in record["members"]].count("RUNNING")
        if "ends" in record:
            return "DEACTIVATING"
        if running == len(record["members"]):
            return "ACTIVE"
        if "active" not in record:
            return "INCOMPLETE" if "error" in record else "ACTIVATING"
        return "ACTIVE_DEGRADED" if running else "FAILED"

    def _member(self, name: str, member: str) -> Json:
        record, base = self.records[name], self._context.compute_base
        version = {"instanceTemplate": base + record["template"]}
        shown: Json = {
            "instance": base + member,
            "name": member.rpartition("/")[2],
            "version": version,
        }
        if member not in self._store:
            attempt = {"errors": {"errors": [_shown(record["error"])]}}
            return {**shown, "currentAction": "CREATING", "lastAttempt": attempt}
        status = self._store.status(member)
        action = "DELETING" if "ends" in record else _ACTIONS.get(status, "NONE")
        own = {"id": self._store.instance(member)["id"], "instanceStatus": status}
        return {**shown, **own, "currentAction": action}

    def _instance_group(self, name: str) -> Json:
        place, short = name.split("/instanceGroupManagers/")
        base, record = self._context.compute_base, self.records[name]
        return {
            "kind": "compute#instanceGroup",
            "id": record["id"],
            "creationTimestamp": record["group"]["creationTimestamp"],
            "name": short,
            "zone": base + place,
            "size": len(self._members(name)),
            "fingerprint": fingerprint(record["group"]),
            "selfLink": f"{base}{place}/instanceGroups/{short}",
        }

    def _members(self, name: str) -> Sequence[str]:
        """Return the full names of a group's existing instances."""
        return [member for member in self.records[name]["members"] if member in self._store]


def _shown(error: Json) -> Json:
    """Return a recorded error as groups show it, without the HTTP status."""
    return {key: value for key, value in error.items() if not key.startswith("http")}
