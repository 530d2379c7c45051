"""The node methods of the Cloud TPU API: they check each change before the store begins it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tpukit.emulator.core.api_errors import ApiError, Json, camel, invalid, not_found
from tpukit.emulator.core.guest_entries import guest_entries
from tpukit.emulator.core.service_context import Call, ServiceContext, Views, listing
from tpukit.emulator.tpu_service.catalogue import Catalogue, Reservations
from tpukit.emulator.tpu_service.node_fields import is_reserved
from tpukit.emulator.tpu_service.node_request import parse_fields, parse_node
from tpukit.emulator.tpu_service.node_store import EXTERNAL, NodeStore
from tpukit.emulator.tpu_service.operations import TpuOperations
from tpukit.emulator.tpu_service.quotas import Quotas
from tpukit.emulator.workers.worker_host import WorkerRecord

#: Cloud TPU API reference, projects.locations.nodes.patch: the fields of updateMask. gcloud also
#: sends data_disks: surface/compute/tpus/tpu_vm/update.yaml.
_UPDATABLE = frozenset({"description", "tags", "labels", "metadata", "dataDisks"})


@dataclass(frozen=True)
class Nodes:
    """The nodes of every project and zone."""

    _context: ServiceContext
    _catalogue: Catalogue
    _operations: TpuOperations
    _store: NodeStore
    _quotas: Quotas
    _reservations: Reservations

    def create(self, call: Call) -> Json:
        self._catalogue.check_zone(call)
        given = call.query.get("nodeId", "")
        if begun := self._operations.repeated(call, "create", f"{call.parent}/nodes/{given}"):
            return begun
        name = f"{call.parent}/nodes/{self._context.given_or_random_id(given, 'node')}"
        document = parse_node(self._context, self._catalogue, call)
        if name in self._store:
            raise ApiError("ALREADY_EXISTS", f"Resource '{name}' already exists")
        self._quotas.check(call, [document])
        scheduling = document["schedulingConfig"]
        if is_reserved(scheduling):
            call = self._reservations.claimed(call, scheduling.get("reservationName", ""))
        workers = self._catalogue.workers_of(document)
        refusal = self._catalogue.flex_start_refusal(call.path["zone"], document)
        return self._store.add(
            replace(call, failure=call.failure or refusal), name, document, workers
        )

    def get(self, call: Call) -> Json:
        return self._store.view(self._find(call))

    def list(self, call: Call) -> Json:
        """List the nodes of a zone, or of all zones for `-`."""
        prefix = self._catalogue.prefix(call, "nodes")
        names = (name for name in self._store if name.startswith(prefix))
        return listing(call, "nodes", Views(names, self._store.view))

    def delete(self, call: Call) -> Json:
        """Delete a node in any state except DELETING."""
        asked = f"{call.parent}/nodes/{call.path['node']}"
        if begun := self._operations.repeated(call, "delete", asked):
            return begun
        name = self._find(call)
        if self._store.state(name) == "DELETING":
            raise conflict(name)
        return self._store.remove(call, name)

    def stop(self, call: Call) -> Json:
        name = self._changeable(call, "stop", {"READY"})
        if self._store.node(name).get("queuedResource"):
            # Source of the sentence: a public report.
            raise self._context.bad_request("StopNode is not supported for queued resources")
        self._refuse_pod(name, "stopped")
        self._store.halt(name, "STOPPING")
        return self._operations.begin(call, "stop", name, self._context.timing.change)

    def start(self, call: Call) -> Json:
        name = self._changeable(call, "start", {"STOPPED"})
        self._refuse_pod(name, "started")
        self._store.set_state(name, "STARTING")
        return self._operations.begin(call, "start", name, self._context.timing.create)

    def patch(self, call: Call) -> Json:
        """Change the fields of the update mask when the operation is done."""
        name = self._changeable(call, "update", {"READY", "STOPPED"})
        mask = [_camel_path(path) for path in call.query.get("updateMask", "").split(",") if path]
        refused = [path for path in mask if path not in _UPDATABLE and path != EXTERNAL]
        if refused or not mask:
            raise self._context.bad_request(f"invalid update mask {','.join(refused)!r}")
        given = parse_fields(call)
        change: Json = {path: given.get(path) for path in mask if path != EXTERNAL}
        if EXTERNAL in mask:
            change[EXTERNAL] = bool(given.get("networkConfig", {}).get("enableExternalIps"))
        return self._operations.begin(call, "update", name, self._context.timing.update, change)

    def simulate_maintenance_event(self, call: Call) -> Json:
        """Let the node report maintenance for a while, after a check of the worker ids."""
        name = self._changeable(call, "simulateMaintenanceEvent", {"READY"})
        for text in call.body.get("workerIds") or ["0"]:
            _worker_index(text, self._store.workers(name))
        seconds = self._context.timing.update
        return self._operations.begin(call, "simulateMaintenanceEvent", name, seconds)

    def perform_maintenance(self, call: Call) -> Json:
        """Restart the workers, which ends a maintenance event."""
        name = self._changeable(call, "performMaintenance", {"READY"})
        return self._store.restart(call, name, "performMaintenance")

    def get_guest_attributes(self, call: Call) -> Json:
        """Return one entry per worker, in order; entries are empty until the node is READY."""
        name = self._find(call)
        booted, workers = self._store.state(name) == "READY", self._store.workers(name)
        wanted = [text for text in call.body.get("workerIds") or [] if text != ""]
        path = str(call.body.get("queryPath") or "")
        chosen = [workers[_worker_index(text, workers)] for text in wanted] if wanted else workers
        items = [
            guest_entries(worker, self._store.guest_attributes(worker), path) if booted else []
            for worker in chosen
        ]
        values = [{"queryPath": path, "queryValue": {"items": entries}} for entries in items]
        return {"guestAttributes": values}

    def _find(self, call: Call) -> str:
        self._catalogue.check_zone(call)
        name = f"{call.parent}/nodes/{call.path['node']}"
        if name not in self._store:
            raise not_found(name)
        return name

    def _changeable(self, call: Call, verb: str, states: Collection[str]) -> str:
        name = self._find(call)
        state = self._store.state(name)
        if state not in states:
            # Source of the sentence, for update and PREEMPTED: skypilot-org/skypilot#1468.
            raise self._context.bad_request(f"{verb} is not supported while in state {state}")
        if self._operations.pending(name):
            raise conflict(name)
        return name

    def _refuse_pod(self, name: str, done: str) -> None:
        # Documentation "Manage TPUs": a slice of several workers can only be deleted. The real
        # message is not on record.
        if len(self._store.workers(name)) > 1:
            raise self._context.bad_request(f"a slice with several workers cannot be {done}")


def conflict(name: str) -> ApiError:
    """Return the error for a change while another is under way.

    409 ABORTED is AIP-151's answer to a parallel operation; gcloud expects a 409 when two users
    add a key at once: command_lib/compute/tpus/tpu_vm/ssh.py.
    """
    return ApiError("ABORTED", f"Another operation on '{name}' is in progress.")


def _camel_path(path: str) -> str:
    return ".".join(camel(part) for part in path.strip().split("."))


def _worker_index(text: object, workers: Sequence[WorkerRecord]) -> int:
    """Return the number in a worker id; raise `ApiError` if the node has no such worker."""
    if not str(text).isdecimal() or int(str(text)) >= len(workers):
        raise invalid(f"Invalid worker id {text!r}")
    return int(str(text))
