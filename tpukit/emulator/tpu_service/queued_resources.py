"""The queued-resource methods of the Cloud TPU API."""

from __future__ import annotations

from dataclasses import dataclass

from tpukit.emulator.core.api_errors import ApiError, Json, not_found
from tpukit.emulator.core.service_context import Call, ServiceContext, Views, listing
from tpukit.emulator.tpu_service.catalogue import Catalogue, Reservations
from tpukit.emulator.tpu_service.node_store import NodeStore
from tpukit.emulator.tpu_service.nodes import conflict
from tpukit.emulator.tpu_service.operations import TpuOperations
from tpukit.emulator.tpu_service.queue import Queue
from tpukit.emulator.tpu_service.queued_request import parse_queued_resource
from tpukit.emulator.tpu_service.quotas import Quotas

#: API reference, queuedResources.delete, on `force`: a delete needs it unless the nodes are gone or
#: the request is in one of these states. The queue guide says that WAITING_FOR_RESOURCES replaced
#: ACCEPTED.
_DELETABLE = frozenset({"ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED", "SUSPENDED"})


@dataclass(frozen=True)
class QueuedResources:
    """The queued resources of every project and zone."""

    _context: ServiceContext
    _catalogue: Catalogue
    _operations: TpuOperations
    _store: NodeStore
    _queue: Queue
    _quotas: Quotas
    _reservations: Reservations

    def create(self, call: Call) -> Json:
        self._catalogue.check_zone(call)
        given = call.query.get("queuedResourceId", "")
        prefix = f"{call.parent}/queuedResources/"
        if begun := self._operations.repeated(call, "create", prefix + given):
            return begun
        name = prefix + self._context.given_or_random_id(given, "qr")
        parsed = parse_queued_resource(self._context, self._catalogue, call, name)
        nodes = [spec["node"] for spec in parsed.document["tpu"]["nodeSpec"]]
        taken = [name] if name in self._queue else []
        wanted = (node["name"] for node in nodes)
        taken += [node for node in wanted if node in self._store or self._queue.claims(node)]
        if taken:
            raise ApiError("ALREADY_EXISTS", f"Resource '{taken[0]}' already exists")
        self._quotas.check(call, nodes)
        refusals = (self._catalogue.flex_start_refusal(call.path["zone"], node) for node in nodes)
        for reservation in parsed.reservations:
            call = self._reservations.claimed(call, reservation)
        return self._queue.add(call, name, parsed, next(filter(None, refusals), None))

    def get(self, call: Call) -> Json:
        return self._queue.view(self._find(call))

    def list(self, call: Call) -> Json:
        prefix = self._catalogue.prefix(call, "queuedResources")
        names = (name for name in self._queue if name.startswith(prefix))
        return listing(call, "queuedResources", Views(names, self._queue.view))

    def delete(self, call: Call) -> Json:
        """Delete a request without nodes or in a `_DELETABLE` state, or any with `force`."""
        asked = f"{call.parent}/queuedResources/{call.path['queued']}"
        if begun := self._operations.repeated(call, "delete", asked):
            return begun
        name = self._find(call)
        state = self._queue.state(name)
        if state == "DELETING":
            raise conflict(name)
        forced = call.query.get("force") == "true"
        present = [node for node in self._queue.nodes(name) if node in self._store]
        if present and state not in _DELETABLE and not forced:
            # The rule is from the API reference; the real message is not on record.
            raise ApiError(
                "FAILED_PRECONDITION",
                f"The queued resource '{name}' is in state {state} and has nodes; delete them "
                "first, or use force.",
            )
        return self._queue.remove(call, name)

    def reset(self, call: Call) -> Json:
        """Restart all nodes of an ACTIVE request."""
        name = self._active(call, "reset")
        return self._queue.restart(call, name, "reset", self._queue.nodes(name))

    def perform_maintenance(self, call: Call) -> Json:
        """Restart the nodes that the call names, or all of them."""
        name = self._active(call, "performMaintenance")
        own = {node.rsplit("/", 1)[1]: node for node in self._queue.nodes(name)}
        asked = [text.rsplit("/", 1)[-1] for text in call.body.get("nodeNames") or own]
        strange = [text for text in asked if text not in own]
        if strange:
            raise self._context.bad_request(
                f"the node {strange[0]!r} does not belong to this request"
            )
        return self._queue.restart(call, name, "performMaintenance", [own[n] for n in asked])

    def get_maintenance_info(self, call: Call) -> Json:
        """Return an entry for each node that is under maintenance."""
        entries = []
        for node in self._queue.nodes(self._find(call)):
            if maintenance := self._store.maintenance(node):
                own = {"nodeName": node.rsplit("/", 1)[1], "nodeUid": self._store.node(node)["id"]}
                entries.append({**own, "upcomingMaintenance": maintenance})
        return {"nodeUpcomingMaintenances": entries}

    def _find(self, call: Call) -> str:
        self._catalogue.check_zone(call)
        name = f"{call.parent}/queuedResources/{call.path['queued']}"
        if name not in self._queue:
            raise not_found(name)
        return name

    def _active(self, call: Call, verb: str) -> str:
        name = self._find(call)
        if self._queue.state(name) != "ACTIVE":
            state = self._queue.state(name)
            raise self._context.bad_request(f"{verb} is not supported while in state {state}")
        busy = [n for n in (name, *self._queue.nodes(name)) if self._operations.pending(n)]
        if busy:
            raise conflict(busy[0])
        return name
