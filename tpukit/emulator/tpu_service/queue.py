"""The queue: the states of a request for nodes, from CREATING to ACTIVE and to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tpukit.emulator.core.api_errors import Json, Status
from tpukit.emulator.core.service_context import Call, ServiceContext, project_number
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.tpu_service.node_store import NodeStore
from tpukit.emulator.tpu_service.operations import TpuOperations
from tpukit.emulator.tpu_service.queued_request import ParsedQueuedResource

#: The states of nodes that end an ACTIVE request: caused by the user, and by the service.
_USER, _SERVICE = frozenset({"DELETING", "GONE"}), frozenset({"PREEMPTED", "TERMINATED"})
#: After google.cloud.tpu.v2.QueuedResourceState on FAILED; the real message is not on record.
_EXPIRED = Status("DEADLINE_EXCEEDED", "The 'valid until' constraint of the request expired.")


#: Two functions: one returns the time when a state ends (or None), the other enters the next state.
_Step = tuple[Callable[[str, Json], float | None], Callable[[str, Json], None]]


class Queue:
    """Queued resources by their full names. Their nodes are ordinary nodes of the store."""

    def __init__(
        self,
        context: ServiceContext,
        catalogue: Catalogue,
        operations: TpuOperations,
        store: NodeStore,
    ) -> None:
        self._context = context
        self._records = context.state.queued_resources
        self._catalogue = catalogue
        self._operations = operations
        self._store = store
        self._steps: Mapping[str, _Step] = {
            "ACCEPTED": (self._considered, self._wait),
            "WAITING_FOR_RESOURCES": (self._granted, self._provision),
            "PROVISIONING": (self._settled, self._activate),
            "ACTIVE": (self._ending, self._suspend),
            "SUSPENDING": (self._emptied, self._suspended),
        }

    def __contains__(self, name: str) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def add(
        self, call: Call, name: str, parsed: ParsedQueuedResource, refusal: Status | None
    ) -> Json:
        """Add a request; return the operation, which ends when it is ACCEPTED or refused."""
        self._records[name] = {
            "request": parsed.document,
            "version": call.version,
            "not_before": parsed.not_before,
            "not_after": parsed.not_after,
            "run_seconds": parsed.run_seconds,
            "failure": call.failure.operation_error() if call.failure else None,
            "delay": call.delay,
            "refusal": refusal.operation_error() if refusal else None,
        }
        self._enter(name, "CREATING")
        return self._operations.begin(call, "create", name, self._context.timing.update)

    def remove(self, call: Call, name: str) -> Json:
        """Begin to delete a request and its remaining nodes."""
        self._operations.abandon(name, Status("CANCELLED", "The request is being deleted."))
        self._records.change(name, before=self.state(name))
        self._enter(name, "DELETING", "USER")
        if call.failure is None:
            self._remove_nodes(name)
        return self._operations.begin(call, "delete", name, self._context.timing.change)

    def restart(self, call: Call, name: str, verb: str, nodes: Sequence[str]) -> Json:
        """Begin to restart the workers of some of the nodes."""
        for node in nodes:
            self._store.restart(call, node, verb)
        return self._operations.begin(call, verb, name, self._context.timing.change)

    def view(self, name: str) -> Json:
        """Return the queued resource in the API's form."""
        record = self._records[name]
        state, initiator = record["state"], record["initiator"]
        document: Json = {"state": state}
        if state != "WAITING_FOR_RESOURCES":
            error = {"error": record["error"]} if state == "FAILED" else {}
            document[f"{state.lower()}Data"] = error
        if initiator:
            document["stateInitiator"] = initiator
        specs = [_answered(spec) for spec in record["request"]["tpu"]["nodeSpec"]]
        return {**record["request"], "tpu": {"nodeSpec": specs}, "state": document}

    def state(self, name: str) -> str:
        return str(self._records[name]["state"])

    def nodes(self, name: str) -> list[str]:
        """Return the full names of all requested nodes, whether they exist or not."""
        specs = self._records[name]["request"]["tpu"]["nodeSpec"]
        return [f"{spec['parent']}/nodes/{spec['nodeId']}" for spec in specs]

    def claims(self, node: str) -> bool:
        """Return True if a waiting request has asked for this node."""
        waiting = {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"}
        return any(self.state(name) in waiting and node in self.nodes(name) for name in self)

    def advance(self) -> None:
        """Advance every request through all states that are due."""
        for name in list(self._records):
            while self._step(name):
                pass

    def complete(self, operation: str, record: Json) -> None:
        """Carry out an operation that is due."""
        name, verb, failure = record["target"], record["verb"], record["failure"]
        if verb == "create":
            # An injected failure ends the request later, not this operation.
            failure = self._records[name]["refusal"]
            if failure:
                self.drop(name)
            else:
                self._enter(name, "ACCEPTED")
        elif verb == "delete" and failure:
            self._enter(name, self._records[name]["before"])
        elif verb == "delete":
            failure = self._drop(name)
        response = self.view(name) if name in self else None
        self._operations.finish(operation, response, failure)

    def drop(self, name: str) -> None:
        """Remove a request without nodes."""
        del self._records[name]

    def _step(self, name: str) -> bool:
        record = self._records[name]
        if record["state"] not in self._steps:
            return False
        end_of, change = self._steps[record["state"]]
        due = end_of(name, record)
        if due is None or due > self._context.now():
            return False
        with self._context.moment(due):
            change(name, record)
        return True

    def _considered(self, name: str, record: Json) -> float:
        return float(record["since"]) + self._context.timing.queue / 2

    def _wait(self, name: str, record: Json) -> None:
        self._enter(name, "WAITING_FOR_RESOURCES")

    def _granted(self, name: str, record: Json) -> float:
        ready = record["since"] + self._context.timing.queue / 2 + record["delay"]
        last = record["not_after"]
        granted = max(ready, record["not_before"])
        return float(granted if last is None else min(granted, last))

    def _provision(self, name: str, record: Json) -> None:
        if record["not_after"] is not None and record["not_after"] <= self._context.now():
            self._fail(name, _EXPIRED.operation_error())
            return
        failure = record["failure"] and Status("INTERNAL", "")
        call = Call(version=record["version"], failure=failure)
        self._enter(name, "PROVISIONING")
        for spec, node in zip(record["request"]["tpu"]["nodeSpec"], self.nodes(name), strict=True):
            if node in self._store:
                text = f"Resource '{node}' already exists"
                self._suspend_for(name, Status("ALREADY_EXISTS", text).operation_error())
                return
            workers = self._catalogue.workers_of(spec["node"])
            self._store.add(call, node, spec["node"], workers)

    def _settled(self, name: str, record: Json) -> float | None:
        states = {self._store.state(node) for node in self.nodes(name)}
        over = states == {"READY"} or states & (_USER | _SERVICE)
        return self._context.now() if over else None

    def _activate(self, name: str, record: Json) -> None:
        if record["failure"]:
            self._suspend_for(name, record["failure"])
        elif self._ended(name):
            self._suspend(name, record)
        else:
            self._enter(name, "ACTIVE")

    def _ending(self, name: str, record: Json) -> float | None:
        if self._ended(name):
            return self._context.now()
        run = record["run_seconds"]
        return None if run is None else float(record["since"] + run)

    def _ended(self, name: str) -> frozenset[str]:
        states = {self._store.state(node) for node in self.nodes(name)}
        return frozenset(states & (_USER | _SERVICE))

    def _suspend(self, name: str, record: Json) -> None:
        """Delete all nodes because one is gone: in SUSPENDED, all resources are deleted."""
        by_user = bool(self._ended(name) & _USER)
        self._enter(name, "SUSPENDING", "USER" if by_user else "SERVICE")
        self._remove_nodes(name)

    def _suspend_for(self, name: str, error: Json) -> None:
        # A public report of a stockout: PROVISIONING, SUSPENDING, FAILED, by SERVICE.
        self._enter(name, "SUSPENDING", "SERVICE", error)
        self._remove_nodes(name)

    def _emptied(self, name: str, record: Json) -> float | None:
        if self._present(name):
            return None
        if record["error"]:
            return float(record["since"] + self._context.timing.change)
        return self._context.now()

    def _suspended(self, name: str, record: Json) -> None:
        if record["error"]:
            self._fail(name, record["error"])
        else:
            self._enter(name, "SUSPENDED", record["initiator"])

    def _fail(self, name: str, error: Json) -> None:
        self._enter(name, "FAILED", "SERVICE", error)

    def _drop(self, name: str) -> Json | None:
        if self._present(name):
            self._fail(name, Status("INTERNAL", "the nodes cannot be removed").operation_error())
            error: Json = self._records[name]["error"]
            return error
        self.drop(name)
        return None

    def _remove_nodes(self, name: str) -> None:
        call = Call(version=self._records[name]["version"])
        for node in self._present(name):
            if self._store.state(node) != "DELETING":
                self._store.remove(call, node)

    def _present(self, name: str) -> list[str]:
        """Return the request's existing nodes."""
        mine = (node for node in self.nodes(name) if node in self._store)
        return [node for node in mine if self._store.node(node).get("queuedResource") == name]

    def _enter(self, name: str, state: str, initiator: str = "", error: Json | None = None) -> None:
        since = self._context.now()
        self._records.change(name, state=state, initiator=initiator, error=error, since=since)


def _answered(spec: Json) -> Json:
    """Return a spec in the API's form: the node as requested, with the project's number.

    Recorded: tests/recorded/exchanges/tpu-queued.
    """
    node = {**spec["asked"], "queuedResource": _by_number(spec["node"]["queuedResource"])}
    return {"parent": _by_number(spec["parent"]), "nodeId": spec["nodeId"], "node": node}


def _by_number(name: str) -> str:
    _, project, rest = name.split("/", 2)
    return f"projects/{project_number(project)}/{rest}"
