"""The emulated services over one state, and the clock that makes their changes due.

This module contains no protocol and no threads. Only one caller at a time may change the service.
Workers may call `authorized_keys`, `admits` and `neighbours` from any thread: the documents that
these methods read are replaced, never changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from tpukit.emulator.compute_service.compute_operations import ComputeOperations
from tpukit.emulator.compute_service.disks import Disks
from tpukit.emulator.compute_service.firewall_store import Firewalls
from tpukit.emulator.compute_service.group_parts import InstanceTemplates, WorkloadPolicies
from tpukit.emulator.compute_service.group_request import GroupRequests
from tpukit.emulator.compute_service.instance_groups import InstanceGroups
from tpukit.emulator.compute_service.instance_store import InstanceStore, as_node
from tpukit.emulator.compute_service.instances import Instances
from tpukit.emulator.compute_service.machine_types import MachineTypes
from tpukit.emulator.compute_service.networks import Networks, Regions, Zones
from tpukit.emulator.compute_service.project_services import ResourceManager, ServiceUsage
from tpukit.emulator.compute_service.projects import Accounts, Projects
from tpukit.emulator.compute_service.subnetworks import Subnetworks
from tpukit.emulator.core.api_errors import ApiError, Json, Status, not_found
from tpukit.emulator.core.emulator_clock import EmulatorClock
from tpukit.emulator.core.operation_metadata import DEFAULT, OperationMetadata
from tpukit.emulator.core.service_context import Call, ServiceContext, Timing, project_number
from tpukit.emulator.core.state import EmulatorState
from tpukit.emulator.faults.scenario import ScenarioEvent
from tpukit.emulator.faults.worker_faults import WorkerFaults
from tpukit.emulator.tpu_service.catalogue import Catalogue, Reservations
from tpukit.emulator.tpu_service.catalogue_changes import CatalogueChanges
from tpukit.emulator.tpu_service.node_store import NodeStore
from tpukit.emulator.tpu_service.nodes import Nodes
from tpukit.emulator.tpu_service.operations import TpuOperations
from tpukit.emulator.tpu_service.queue import Queue
from tpukit.emulator.tpu_service.queued_resources import QueuedResources
from tpukit.emulator.tpu_service.quota_infos import QuotaInfos
from tpukit.emulator.tpu_service.quotas import Quotas
from tpukit.emulator.tpu_service.tpu_node import TpuNodes
from tpukit.emulator.workers.worker_host import WorkerHostFactory


class Service:
    """All emulated APIs over one state; it is the workers' `WorkerOracle`."""

    def __init__(
        self,
        state: EmulatorState,
        clock: EmulatorClock,
        random: Random,
        host: WorkerHostFactory,
        timing: Timing | None = None,
        compute_base: str = "",
        operation_metadata: OperationMetadata = DEFAULT,
    ) -> None:
        timing = timing or Timing()
        self._timing = timing
        self.worker_faults = WorkerFaults(clock.time)
        self.events: list[ScenarioEvent] = []
        self.context = ServiceContext(
            state, clock, random, timing, compute_base, operation_metadata
        )
        self.catalogue = Catalogue(self.context)
        self.operations = TpuOperations(self.context, self.catalogue)
        self.compute_operations = ComputeOperations(self.context)
        self.projects = Projects(self.context, self.compute_operations)
        shared = self.context, self.compute_operations, self.catalogue
        self.networks = Networks(*shared, state.offers)
        self.subnetworks = Subnetworks(*shared, state.offers)
        self.zones = Zones(self.context, self.catalogue)
        self.regions = Regions(self.context, self.catalogue)
        self.machine_types = MachineTypes(self.context, self.catalogue)
        self.disks = Disks(*shared, state.disks)
        self.firewalls = Firewalls(*shared, state.firewalls)
        self.accounts = Accounts(self.context, self.catalogue)
        self.service_usage = ServiceUsage(self.context)
        self.resource_manager = ResourceManager(self.context)
        self.reservations = Reservations(self.context, self.catalogue)
        self.quotas = Quotas(self.context)
        self.quota_infos = QuotaInfos(self.catalogue, self.quotas)
        self.changes = CatalogueChanges(
            self.context, self.catalogue, self.reservations, self.quotas
        )
        self.tpu_nodes = TpuNodes(self.catalogue)
        parts = self.context, self.catalogue, self.operations
        self._host = host(self)
        self.node_store = NodeStore(self.context, self.operations, self._host)
        self.instance_store = InstanceStore(self.context, self.compute_operations, self._host)
        self.instances = Instances(
            *shared, state.instances, self.machine_types, self.instance_store
        )
        self.policies = WorkloadPolicies(*shared, state.policies)
        self.templates = InstanceTemplates(*shared, state.templates)
        requests = GroupRequests(self.context, self.machine_types, self.policies, self.templates)
        self.groups = InstanceGroups(*shared, state.groups, requests, self.instance_store)
        self.queue = Queue(*parts, self.node_store)
        self.nodes = Nodes(*parts, self.node_store, self.quotas, self.reservations)
        self.queued_resources = QueuedResources(
            *parts, self.node_store, self.queue, self.quotas, self.reservations
        )

    def resume(self) -> None:
        """Continue from the saved state: boot the workers of READY nodes and RUNNING instances."""
        self.node_store.boot_ready(self.instance_store.workers())
        self.instance_store.boot_running()
        self.advance()

    def reset(self) -> None:
        """Return to the state of a new emulator.

        Raises `ApiError` if the workers of a node cannot be removed; that node then remains.
        """
        self.events.clear()
        self.worker_faults.clear()
        self._host.refresh()
        for store in (self.node_store, self.instance_store):
            for name in list(store):
                if error := store.drop(name):
                    raise ApiError("INTERNAL", f"{name}: {error['message']}")
        self.context.state.clear()
        self.context.clock.reset()
        self.context.note_time()
        self.context.timing = self._timing

    def advance(self) -> None:
        """Apply all changes that are due, in order, each at its own time."""
        self._settle()
        self.instance_store.advance()
        self.groups.advance()
        for event in self.events:
            for name in event.due(self.context.state.nodes, self.context.now()):
                self.apply_event(name, event.do)
        self.queue.advance()
        if self.worker_faults.changed():
            self._host.refresh()

    def store_of(self, name: str) -> NodeStore | InstanceStore:
        """Return the store of a node or an instance; raise `ApiError` if there is neither."""
        if name in self.instance_store:
            return self.instance_store
        if name in self.node_store:
            return self.node_store
        raise not_found(name)

    def apply_event(self, name: str, event: str) -> None:
        """Apply "preempt", "vanish", a health or a state to a node or an instance."""
        store = self.store_of(name)
        if event == "preempt":
            store.preempt(name)
        elif event == "vanish":
            store.vanish(name)
        elif event in store.states:
            store.put(name, event)
        else:
            store.set_health(name, event)

    def advance_clock(self, seconds: float) -> None:
        self.context.clock.advance(seconds)
        self.context.note_time()
        self.advance()

    def cancel_operation(self, call: Call) -> Json:
        """Cancel a create that is under way; other operations go on, as AIP-151 allows."""
        cancelled = self.operations.request_cancel(call)
        if cancelled and cancelled[1]["verb"] == "create":
            name, record = cancelled
            queued = record["target"] in self.queue
            drop = self.queue.drop if queued else self.node_store.drop
            error = drop(record["target"]) or Status("CANCELLED", "Cancelled.").operation_error()
            self.operations.finish(name, None, error)
        return {}

    def _settle(self) -> None:
        """Complete due operations until none is due: one completion can begin the next."""
        self.queue.advance()
        while due := self.operations.due():
            for name, record in due:
                with self.context.moment(record["due"]):
                    self._complete(name, record)
                    self.queue.advance()
            self.queue.advance()

    def _complete(self, name: str, record: Json) -> None:
        # Another event at the same time may have ended the operation.
        if not self.context.state.operations[name]["done"]:
            owner = self.queue if record["target"] in self.queue else self.node_store
            owner.complete(name, record)

    def authorized_keys(self, node: str) -> Sequence[tuple[str, str]]:
        document = self._node(node)
        if document is None:
            return []
        project = node.split("/")[1]
        items = self.projects.metadata_items(project)
        shared = {item["key"]: item.get("value", "") for item in items}
        own_metadata = document.get("metadata", {})
        # OS Login documentation: if it is on, keys in metadata are ignored.
        if {**shared, **own_metadata}.get("enable-oslogin", "").upper() == "TRUE":
            return list(self.accounts.keys())
        blocked = own_metadata.get("block-project-ssh-keys", "").upper() == "TRUE"
        own, common = own_metadata.get("ssh-keys", ""), shared.get("ssh-keys", "")
        return [*_keys(own), *([] if blocked else _keys(common))]

    def admits(self, node: str, source_ip: str, port: int) -> bool:
        document = self._node(node)
        if document is None:
            return False
        network = document["networkConfig"]["network"]
        return self.firewalls.admits(network, document.get("tags", ()), source_ip, port)

    def neighbours(self, node: str) -> Sequence[str]:
        document = self._node(node)
        if document is None:
            return []
        network = document["networkConfig"]["network"]
        state = self.context.state
        records = [(record["node"], record) for record in list(state.nodes.values())]
        records += [(as_node(*item), item[1]) for item in list(state.instances.items())]
        return [
            worker["address"]
            for document, record in records
            if document["networkConfig"]["network"] == network
            for worker in record["workers"]
        ]

    def metadata(self, node: str) -> Mapping[str, str] | None:
        record = self.context.state.instances.get(node)
        return as_node(node, record)["metadata"] if record else None

    def project_number(self, node: str) -> str:
        return project_number(node.split("/")[1])

    def _node(self, name: str) -> Json | None:
        if record := self.context.state.nodes.get(name):
            return dict(record["node"])
        record = self.context.state.instances.get(name)
        return as_node(name, record) if record else None


def _keys(text: str) -> list[tuple[str, str]]:
    """Return pairs (user, key) from the metadata value `ssh-keys`, one `user:key` per line.

    Compute Engine documentation, "Add SSH keys to VMs": lines without a user are ignored.
    """
    pairs = (line.strip().partition(":") for line in text.splitlines())
    return [(user, key.strip()) for user, _, key in pairs if user and key.strip()]
