"""The instance methods of Compute Engine: they check each change before the store begins it."""

from __future__ import annotations

from dataclasses import dataclass

from tpukit.emulator.compute_service.capacity_errors import (
    failed,
    machine_of,
    quota_error,
    stockout,
)
from tpukit.emulator.compute_service.collection import Collection
from tpukit.emulator.compute_service.compute_operations import already_exists, not_ready
from tpukit.emulator.compute_service.instance_request import parse_instance, valid_seconds
from tpukit.emulator.compute_service.instance_store import InstanceStore, SlicePlace
from tpukit.emulator.compute_service.machine_types import MachineTypes
from tpukit.emulator.compute_service.projects import (
    check_fingerprint,
    checked_items,
    fingerprint,
)
from tpukit.emulator.core.api_errors import ApiError, Json
from tpukit.emulator.core.guest_entries import guest_entries
from tpukit.emulator.core.service_context import Call
from tpukit.emulator.tpu_service.node_fields import check_labels, check_tags


@dataclass(frozen=True)
class Instances(Collection):
    """The instances of every project and zone, each one host of a TPU."""

    kind, collection = "instance", "instances"

    _machines: MachineTypes
    _store: InstanceStore

    def insert(self, call: Call) -> Json:
        full = f"{self._place(call)}{call.body.get('name', '')}"
        if begun := self._operations.repeated(call, "insert", full):
            return begun
        instance, machine = parse_instance(self._context, self._machines, call)
        made = (disk["source"] for disk in instance["disks"] if "made" in disk)
        for name in (full, *made):
            if name in self.records or name in self._context.state.disks:
                raise already_exists(name)
        error = quota_error(self._context, call, instance)
        if error is None and call.failure:
            error = failed(call, call.failure, machine)
        flexible = instance["scheduling"]["provisioningModel"] == "FLEX_START"
        if error is None and flexible and call.delay > valid_seconds(call):
            error = stockout(call, machine)
        place = SlicePlace(machine.accelerator, (instance["name"],))
        return self._store.add(call, full, instance, place, error)

    def delete(self, call: Call) -> Json:
        if begun := self._operations.repeated(call, "delete", self._full_name(call)):
            return begun
        name = self._find(call)
        if call.failure:
            error = failed(call, call.failure, machine_of(self._store.instance(name)))
            seconds = self._context.timing.change
            return self._operations.begin(call, "delete", name, seconds, error)
        return self._store.remove(call, name)

    def stop(self, call: Call) -> Json:
        """Stop an instance; a TERMINATED one stays so, and the operation succeeds."""
        name = self._settled(call)
        if self._store.status(name) == "TERMINATED":
            return self._operations.begin(call, "stop", name)
        return self._store.stop(call, name)

    def start(self, call: Call) -> Json:
        """Start an instance; a RUNNING one stays so, and the operation succeeds."""
        name = self._settled(call)
        if self._store.status(name) == "RUNNING":
            return self._operations.begin(call, "start", name)
        if call.failure:
            error = failed(call, call.failure, machine_of(self._store.instance(name)))
            seconds = self._context.timing.refusal
            return self._operations.begin(call, "start", name, seconds, error)
        return self._store.start(call, name)

    def set_metadata(self, call: Call) -> Json:
        """Replace all items, also those that Compute Engine wrote itself."""
        name = self._find(call)
        items = checked_items(call.body)
        check_fingerprint(call.body.get("fingerprint"), self._store.instance(name)["metadata"])
        self._store.change(name, metadata=items)
        return self._operations.begin(call, "setMetadata", name)

    def set_labels(self, call: Call) -> Json:
        name, labels = self._find(call), call.body.get("labels") or {}
        check_labels(labels)
        present = self._store.instance(name).get("labels", {})
        check_fingerprint(call.body.get("labelFingerprint"), present, "labels")
        self._store.change(name, labels=labels)
        return self._operations.begin(call, "setLabels", name)

    def set_tags(self, call: Call) -> Json:
        name, tags = self._find(call), call.body.get("items") or []
        check_tags(tags)
        check_fingerprint(call.body.get("fingerprint"), self._store.instance(name)["tags"], "tags")
        self._store.change(name, tags=tags)
        return self._operations.begin(call, "setTags", name)

    def get_guest_attributes(self, call: Call) -> Json:
        """Return the attributes below `queryPath`, if metadata enables them and any exist."""
        name, path = self._find(call), call.query.get("queryPath", "")
        node = self._store.node(name)
        record = self._context.state.projects.get(call.project, {"items": []})
        shared = {item["key"]: item.get("value", "") for item in record["items"]}
        key = "enable-guest-attributes"
        enabled = {**shared, **node["metadata"]}.get(key, "").upper() == "TRUE"
        published: list[Json] = []
        if enabled and self._store.status(name) == "RUNNING":
            attributes = self._store.guest_attributes(name)
            published = list(guest_entries(self._store.worker(name), attributes, path))
        if not published:
            raise ApiError(
                "NOT_FOUND", f"The resource '{path}' of type 'Guest Attribute' was not found."
            )
        return {
            "kind": "compute#guestAttributes",
            "queryPath": path,
            "queryValue": {"items": published},
            "selfLink": f"{self._context.compute_base}{name}/guestAttributes/",
        }

    def _settled(self, call: Call) -> str:
        """Return the name of an instance that is neither starting nor stopping."""
        name = self._find(call)
        if self._store.status(name) not in ("RUNNING", "TERMINATED"):
            raise not_ready(name)
        return name

    def view(self, full: str) -> Json:
        base, instance = self._context.compute_base, self._store.instance(full)
        own = {key: value for key, value in instance.items() if key not in _INTERNAL}
        worker, (interface, *_) = self._store.worker(full), instance["networkInterfaces"]
        allocated = instance["status"] not in ("PENDING", "PROVISIONING")
        running = instance["status"] in ("STAGING", "RUNNING")
        address = {"natIP": worker.address} if running else {}
        configs = [{**config, **address} for config in interface["accessConfigs"]]
        shown = {
            "kind": "compute#networkInterface",
            "name": "nic0",
            **interface,
            "network": base + interface["network"],
            "subnetwork": base + interface["subnetwork"],
            "fingerprint": fingerprint(interface),
            **({"networkIP": worker.address} if allocated else {}),
        }
        shown.pop("accessConfigs")
        labels, items = instance.get("labels", {}), instance["metadata"]
        ends = instance.get("terminationTimestamp")
        scheduling = {"terminationTimestamp": ends} if ends else {}
        return {
            "kind": "compute#instance",
            **own,
            "zone": base + instance["zone"],
            "machineType": base + instance["machineType"],
            "metadata": {
                "kind": "compute#metadata",
                "fingerprint": fingerprint(items),
                "items": items,
            },
            "tags": {"fingerprint": fingerprint(instance["tags"]), "items": instance["tags"]},
            "labelFingerprint": fingerprint(labels),
            "networkInterfaces": [{**shown, **({"accessConfigs": configs} if configs else {})}],
            "disks": [{**disk, "source": base + disk["source"]} for disk in instance["disks"]],
            "resourceStatus": {"scheduling": scheduling},
            "canIpForward": False,
            "deletionProtection": False,
            "fingerprint": fingerprint(own),
            "startRestricted": False,
            "selfLink": base + full,
        }


#: The fields of a recorded instance that no answer has.
_INTERNAL = ("family", "terminationTimestamp")
