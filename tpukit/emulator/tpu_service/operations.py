"""Long-running operations of the Cloud TPU API: changes with a due time."""

from __future__ import annotations

from collections import deque

from tpukit.emulator.core.api_errors import ApiError, Json, Status, not_found
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.operation_metadata import metadata_type
from tpukit.emulator.core.service_context import Call, ServiceContext, Views, listing
from tpukit.emulator.tpu_service.catalogue import Catalogue

#: The number of finished operations to keep; the real service keeps them for 30 days (AIP-151).
KEPT = 1000
_TYPE = "type.googleapis.com/google.cloud.tpu"
#: The type of the resources of a collection.
_TYPES = {"nodes": "Node", "queuedResources": "QueuedResource"}


class TpuOperations:
    """Records of operations; the stores of nodes and queued resources carry them out."""

    def __init__(self, context: ServiceContext, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue
        self._records = context.state.operations
        records = self._records.items()
        #: Names of pending and of finished operations, so that no call searches all records.
        self._begun = {name: None for name, record in records if not record["done"]}
        self._ended = deque(name for name, record in records if record["done"])

    def begin(
        self, call: Call, verb: str, target: str, seconds: float, change: Json | None = None
    ) -> Json:
        """Record an operation on `target` that is due in `seconds`; return it in the API's form.

        The record includes the call's API version, for gRPC: a client of v2alpha1 cannot read v2's
        types.
        """
        now = self._context.now()
        name = f"{target.rsplit('/', 2)[0]}/operations/{self._context.operation_id()}"
        self._records[name] = {
            "version": call.version,
            "request_id": call.query.get("requestId", ""),
            "verb": verb,
            "target": target,
            "created": now,
            "due": now + seconds,
            "done": False,
            "change": change or {},
            "failure": call.failure.operation_error() if call.failure else None,
        }
        self._begun[name] = None
        return self.view(name)

    def repeated(self, call: Call, verb: str, target: str) -> Json | None:
        """Return the operation of an earlier call with the same request id (AIP-155), or None.

        `target` ends in a slash if the call leaves the id to the service.
        """
        asked = call.query.get("requestId")
        for name, record in self._records.items() if asked else ():
            full = record["target"]
            same = target in (full, full.rpartition("/")[0] + "/") and record["verb"] == verb
            if same and record["request_id"] == asked:
                return self.view(name, call.version)
        return None

    def due(self) -> list[tuple[str, Json]]:
        """Return the pending operations that are due, the earliest first."""
        now = self._context.now()
        ready = [item for item in self.pending() if item[1]["due"] <= now]
        return sorted(ready, key=lambda item: item[1]["due"])

    def pending(self, target: str = "") -> list[tuple[str, Json]]:
        """Return the pending operations on one target, or on all."""
        begun = ((name, self._records.get(name)) for name in self._begun)
        return [
            (name, record)
            for name, record in begun
            if record and not record["done"] and target in ("", record["target"])
        ]

    def finish(self, name: str, response: Json | None, error: Json | None = None) -> None:
        """End an operation with the resource's present form (None after a delete), or an error."""
        record = self._records[name]
        ended = min(record["due"], self._context.now())
        outcome = {"error": error} if error else {"response": response}
        self._records.change(name, done=True, ended=ended, **outcome)
        self._begun.pop(name, None)
        self._ended.append(name)
        while len(self._ended) > KEPT:
            self._records.pop(self._ended.popleft(), None)

    def abandon(self, target: str, status: Status) -> None:
        """End every pending operation on a target with an error."""
        for name, _ in self.pending(target):
            self.finish(name, None, status.operation_error())

    def view(self, name: str, version: str = "") -> Json:
        """Return the operation in the form of an API version (default: the version of its call)."""
        record = self._records[name]
        version = version or record["version"]
        metadata: Json = {
            "@type": metadata_type(self._context.operation_metadata, version),
            "createTime": timestamp(record["created"]),
            "target": record["target"],
            "verb": record["verb"],
            "cancelRequested": record.get("cancel_requested", False),
            "apiVersion": version,
        }
        if not record["done"]:
            return {"name": name, "metadata": metadata, "done": False}
        metadata["endTime"] = timestamp(record["ended"])
        return {"name": name, "metadata": metadata, "done": True, **_outcome(record, version)}

    def get(self, call: Call) -> Json:
        return self.view(self._find(call), call.version)

    def list(self, call: Call) -> Json:
        prefix = self._catalogue.prefix(call, "operations")
        names = (name for name in self._records if name.startswith(prefix))
        views = Views(names, lambda name: self.view(name, call.version))
        return listing(call, "operations", views, 500)

    def delete(self, call: Call) -> Json:
        """Remove a finished operation."""
        name = self._find(call)
        if not self._records[name]["done"]:
            raise ApiError("FAILED_PRECONDITION", f"Operation '{name}' is not done.")
        del self._records[name]
        return {}

    def request_cancel(self, call: Call) -> tuple[str, Json] | None:
        """Mark an operation as to be cancelled and return it, or None if it is done."""
        name = self._find(call)
        if self._records[name]["done"]:
            return None
        self._records.change(name, cancel_requested=True)
        return name, self._records[name]

    def _find(self, call: Call) -> str:
        name = f"{call.parent}/operations/{call.path['operation']}"
        if name not in self._records:
            raise not_found(name)
        return name


def _outcome(record: Json, version: str) -> Json:
    if "error" in record:
        return {"error": record["error"]}
    if record["response"] is None:
        return {"response": {"@type": "type.googleapis.com/google.protobuf.Empty"}}
    kind = _TYPES[record["target"].rsplit("/", 2)[1]]
    return {"response": {"@type": f"{_TYPE}.{version}.{kind}", **record["response"]}}
