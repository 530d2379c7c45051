"""The existing nodes, and the changes of nodes and their workers when operations are due."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from tpukit.emulator.core.api_errors import ApiError, Json, Status
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import Call, ServiceContext
from tpukit.emulator.tpu_service.operations import TpuOperations
from tpukit.emulator.workers.worker_host import WorkerHost, WorkerRecord
from tpukit.errors import TpukitError

#: The only nested field that an update may name.
EXTERNAL = "networkConfig.enableExternalIps"
#: The error of a create if the node is preempted meanwhile: skypilot-org/skypilot, which met it as
#: code 3 (sky/backends/cloud_vm_ray_backend.py).
_PREEMPTED = Status(
    "INVALID_ARGUMENT",
    "Cloud TPU received a bad request. update is not supported while in state PREEMPTED "
    "[EID: 0x73013519f5b7feb2]",
)

#: The discovery document on Node.state. A node's workers run in the first of these.
RUNNING_STATES = ("READY", "UNKNOWN", "HIDING", "HIDDEN", "UNHIDING")

#: Errors when a machine has no room for a worker; Python raises RuntimeError without free threads.
_NO_ROOM = (TpukitError, OSError, RuntimeError)
_log = logging.getLogger(__name__)


class NodeStore:
    """Nodes by their full names. A change starts an operation, and happens when that is due."""

    states = (
        *RUNNING_STATES,
        *("CREATING", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING"),
        *("STARTING", "STOPPED", "STOPPING", "PREEMPTED", "TERMINATED"),
    )

    def __init__(
        self, context: ServiceContext, operations: TpuOperations, host: WorkerHost
    ) -> None:
        self._context = context
        self._records = context.state.nodes
        self._operations = operations
        self._host = host

    def __contains__(self, name: str) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def add(self, call: Call, name: str, document: Json, workers: int) -> Json:
        """Begin to create a node with a number of workers, and return the API's operation."""
        records = [asdict(worker) for worker in self._host.allocate(name, workers)]
        node = {
            **document,
            "name": name,
            "id": self._context.number(),
            "apiVersion": "V2" if call.version == "v2" else "V2_ALPHA1",
            "createTime": self._context.stamp(),
            "state": "CREATING",
        }
        self._records[name] = {"node": node, "workers": records}
        timing = self._context.timing
        seconds = timing.refusal if call.failure else timing.create
        return self._operations.begin(call, "create", name, seconds)

    def halt(self, name: str, state: str) -> None:
        """End the workers' processes, keep their files, and set the node's state."""
        self._host.halt(name)
        self.set_state(name, state)

    def remove(self, call: Call, name: str) -> Json:
        """Begin to delete a node, and cancel its other operations."""
        self._operations.abandon(name, Status("CANCELLED", "The node is being deleted."))
        change = {"before": self.state(name)}
        self.halt(name, "DELETING")
        return self._operations.begin(call, "delete", name, self._context.timing.change, change)

    def restart(self, call: Call, name: str, verb: str) -> Json:
        """Begin to restart the workers; their files stay."""
        self.halt(name, "RESTARTING")
        return self._operations.begin(call, verb, name, self._context.timing.change)

    def preempt(self, name: str) -> None:
        """Preempt a node, as Google preempts a spot slice."""
        self._operations.abandon(name, _PREEMPTED)
        self.halt(name, "PREEMPTED")

    def put(self, name: str, state: str) -> None:
        """Put a node in a state, from any other state, and cancel its operations.

        The node keeps the state until a call or an event changes it.
        """
        self._operations.abandon(name, Status("CANCELLED", f"The node was set to {state}."))
        if state not in RUNNING_STATES:
            self.halt(name, state)
        elif self.state(name) in RUNNING_STATES:
            self.set_state(name, state)
        elif error := self._boot(name, "TERMINATED"):
            raise ApiError("INTERNAL", str(error["message"]))
        else:
            self.set_state(name, state)

    def vanish(self, name: str) -> None:
        """Remove a node without a trace, as happens to spot slices too.

        Source: skypilot-org/skypilot#1468: lost slices end in various ways.
        """
        self._operations.abandon(name, _PREEMPTED)
        self.drop(name)

    def view(self, name: str) -> Json:
        """Return the node in the API's form."""
        node = self.node(name)
        if node["state"] == "CREATING":
            return dict(node)
        external = node["networkConfig"]["enableExternalIps"]
        endpoints = [_endpoint(worker, external) for worker in self.workers(name)]
        health = node.get("health", "HEALTHY")
        health = "UNHEALTHY_MAINTENANCE" if self.maintenance(name) else health
        shown = {"health": health} if node["state"] == "READY" else {}
        return {**node, **shown, "networkEndpoints": endpoints}

    def node(self, name: str) -> Json:
        document: Json = self._records[name]["node"]
        return document

    def workers(self, name: str) -> Sequence[WorkerRecord]:
        return [WorkerRecord(**worker) for worker in self._records[name]["workers"]]

    def guest_attributes(self, worker: WorkerRecord) -> Mapping[str, str]:
        """Return the guest attributes that a worker has published, by `namespace/key`."""
        return self._host.guest_attributes(worker)

    def state(self, name: str) -> str:
        """Return the node's state, or "GONE" if the node does not exist."""
        return str(self.node(name)["state"]) if name in self else "GONE"

    def set_state(self, name: str, state: str) -> None:
        self._records.change(name, node={**self.node(name), "state": state})

    def maintenance(self, name: str) -> Json | None:
        """Return a node's current maintenance in the form of v2alpha1, or None."""
        until = self._records[name].get("maintenance_until", 0.0) if name in self else 0.0
        if until <= self._context.now():
            return None
        return {
            "type": "UNSCHEDULED",
            "maintenanceStatus": "ONGOING",
            "canReschedule": True,
            "windowStartTime": timestamp(until - self._context.timing.maintenance),
            "windowEndTime": timestamp(until),
        }

    def set_health(self, name: str, health: str) -> None:
        """Set the health that the node reports while it is READY."""
        self._records.change(name, node={**self.node(name), "health": health})

    def boot_ready(self, others: Sequence[WorkerRecord] = ()) -> None:
        """Boot the workers again after a restart of the emulator, on other addresses if necessary.

        Remove the files of all workers except these and `others`: their state file was moved away
        or never written.
        """
        own = [worker for name in self for worker in self.workers(name)]
        self._host.keep_only([*own, *others])
        states = {name: self.state(name) for name in self._records}
        for name in [node for node, state in states.items() if state in RUNNING_STATES]:
            if failure := self._boot(name, states[name]):
                failure = self._boot_elsewhere(name, failure["message"])
            if failure:
                _log.error("%s is TERMINATED: %s", name, failure["message"])
            else:
                self.set_state(name, states[name])

    def _boot_elsewhere(self, name: str, why: str) -> Json | None:
        _log.warning("%s: %s; trying other addresses", name, why)
        try:
            moved = [asdict(worker) for worker in self._host.move(name, self.workers(name))]
            self._records.change(name, workers=moved)
            return self._boot(name, "TERMINATED")
        except _NO_ROOM as error:
            return self._broken(name, "TERMINATED", str(error))

    def complete(self, operation: str, record: Json) -> None:
        """Carry out an operation that is due."""
        name, verb, failure = record["target"], record["verb"], record["failure"]
        if verb == "create" and failure:
            failure = self.drop(name) or failure
        elif verb == "delete" and failure:
            self._restore(name, record["change"]["before"])
        elif verb == "start" and failure:
            self.set_state(name, "STOPPED")
        elif verb in ("create", "start", "reset", "performMaintenance"):
            failure = self._boot(name, "STOPPED" if verb == "start" else "TERMINATED")
        elif verb == "delete":
            failure = self.drop(name)
        elif verb == "stop":
            self.set_state(name, "STOPPED")
        elif verb == "simulateMaintenanceEvent":
            until = record["due"] + self._context.timing.maintenance
            self._records.change(name, maintenance_until=until)
        elif verb == "update":
            self._change(name, record["change"])
        response = self.view(name) if name in self._records else None
        if response and verb == "create":
            response.pop("health", None)  # recorded: exchanges/tpu-node/02-create-done
        self._operations.finish(operation, response, failure)

    def drop(self, name: str) -> Json | None:
        """Remove a node and its workers at once; return the error if the workers remain."""
        try:
            self._host.discard(name)
        except (TpukitError, OSError) as error:
            return self._broken(name, "TERMINATED", f"the workers cannot be removed: {error}")
        del self._records[name]
        return None

    def _restore(self, name: str, state: str) -> None:
        """Return a node to its state after a failed delete."""
        self.set_state(name, state)
        if state == "READY":
            self._boot(name, "TERMINATED")

    def _boot(self, name: str, fallback: str) -> Json | None:
        try:
            self._host.boot(self.node(name), self.workers(name))
        except _NO_ROOM as error:
            return self._broken(name, fallback, f"the workers cannot start: {error}")
        self._records.change(name, maintenance_until=0.0)
        self.set_state(name, "READY")
        return None

    def _broken(self, name: str, state: str, why: str) -> Json:
        """Put a node in a state from which it can be deleted, and return the workers' error."""
        self.set_state(name, state)
        return Status("INTERNAL", why).operation_error()

    def _change(self, name: str, change: Json) -> None:
        node = dict(self.node(name))
        for path, value in change.items():
            if path == EXTERNAL:
                node["networkConfig"] = {**node["networkConfig"], "enableExternalIps": value}
            elif value is None:
                node.pop(path, None)
            else:
                node[path] = value
        self._records.change(name, node=node)


def _endpoint(worker: WorkerRecord, external: bool) -> Json:
    access = {"externalIp": worker.address} if external else {}
    return {"ipAddress": worker.address, "port": 8470, "accessConfig": access}
