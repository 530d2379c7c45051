"""Nodes of the Cloud TPU API: each change starts an operation and happens when that falls due."""

from __future__ import annotations

from collections.abc import Sequence

from tpukit.emulator.catalogue import Catalogue
from tpukit.emulator.context import Call, Context, page
from tpukit.emulator.errors import ApiError, Json, Status
from tpukit.emulator.node_request import camel, check_node_id, parse_fields, parse_node
from tpukit.emulator.operations import Operations
from tpukit.emulator.workers import WorkerHost, WorkerRecord
from tpukit.errors import TpukitError

#: Cloud TPU API reference, projects.locations.nodes.patch: the fields of updateMask. gcloud also
#: sends data_disks: surface/compute/tpus/tpu_vm/update.yaml.
_UPDATABLE = frozenset({"description", "tags", "labels", "metadata", "dataDisks"})
_EXTERNAL = "networkConfig.enableExternalIps"


class Nodes:
    """The nodes of every project and zone."""

    def __init__(
        self, context: Context, catalogue: Catalogue, operations: Operations, host: WorkerHost
    ) -> None:
        self._context = context
        self._catalogue = catalogue
        self._operations = operations
        self._host = host

    @property
    def _records(self) -> dict[str, Json]:
        return self._context.state.nodes

    def create(self, call: Call) -> Json:
        self._catalogue.check_zone(call)
        node_id = call.query.get("nodeId", "") or f"node-{self._context.random.getrandbits(32):08x}"
        check_node_id(self._context, node_id)
        name = f"{call.parent}/nodes/{node_id}"
        document = parse_node(self._context, self._catalogue, call)
        if name in self._records:
            raise ApiError("ALREADY_EXISTS", f"Resource '{name}' already exists")
        kind = self._catalogue.by_name(call.path["zone"], document["acceleratorType"])
        workers = self._host.allocate(name, kind.workers if kind else 1)
        node = {
            **document,
            "name": name,
            "id": self._context.number(),
            "apiVersion": "V2" if call.version == "v2" else "V2_ALPHA1",
            "createTime": self._context.stamp(),
            "state": "CREATING",
        }
        self._records[name] = {"node": node, "workers": [worker.document() for worker in workers]}
        return self._begin(call, "create", name, self._context.timing.create)

    def get(self, call: Call) -> Json:
        return self.view(self._find(call))

    def list(self, call: Call) -> Json:
        """List a zone's nodes, or every zone's for the zone `-`."""
        if call.path["zone"] != "-":
            self._catalogue.check_zone(call)
        any_zone = call.path["zone"] == "-"
        prefix = f"projects/{call.project}/locations/" if any_zone else f"{call.parent}/nodes/"
        found = ((name, self.view(name)) for name in self._records if name.startswith(prefix))
        query = call.query
        shown, token = page(found, query.get("pageSize", ""), query.get("pageToken", ""), 1000)
        return {"nodes": shown, **({"nextPageToken": token} if token else {})}

    def delete(self, call: Call) -> Json:
        """Delete in any state; what else was under way on the node ends as cancelled."""
        name = self._find(call)
        if self._state(name) == "DELETING":
            raise self._conflict(name)
        self._host.halt(name)
        self._operations.abandon(name, Status("CANCELLED", "The node is being deleted."))
        self._set_state(name, "DELETING")
        return self._begin(call, "delete", name, self._context.timing.change)

    def stop(self, call: Call) -> Json:
        name = self._changeable(call, "stop", {"READY"})
        self._refuse_pod(name, "stopped")
        self._host.halt(name)
        self._set_state(name, "STOPPING")
        return self._begin(call, "stop", name, self._context.timing.change)

    def start(self, call: Call) -> Json:
        name = self._changeable(call, "start", {"STOPPED"})
        self._refuse_pod(name, "started")
        self._set_state(name, "STARTING")
        return self._begin(call, "start", name, self._context.timing.create)

    def patch(self, call: Call) -> Json:
        """Change the fields of the update mask; they show once the operation is done."""
        name = self._changeable(call, "update", {"READY", "STOPPED"})
        mask = [_camel_path(path) for path in call.query.get("updateMask", "").split(",") if path]
        refused = [path for path in mask if path not in _UPDATABLE and path != _EXTERNAL]
        if refused or not mask:
            raise self._context.bad_request(f"invalid update mask {','.join(refused)!r}")
        given = parse_fields(call)
        change: Json = {path: given.get(path) for path in mask if path != _EXTERNAL}
        if _EXTERNAL in mask:
            change[_EXTERNAL] = bool(given.get("networkConfig", {}).get("enableExternalIps"))
        return self._begin(call, "update", name, self._context.timing.update, change)

    def preempt(self, name: str) -> Json:
        """Take a node away as Google does with a spot slice."""
        if name not in self._records:
            raise _not_found(name)
        self._host.halt(name)
        self._operations.abandon(name, Status("ABORTED", "The node was preempted."))
        self._set_state(name, "PREEMPTED")
        return self.view(name)

    def get_guest_attributes(self, call: Call) -> Json:
        """Answer one entry a worker, in the order of the workers; empty until they have booted."""
        name = self._find(call)
        workers = self.workers(name)
        wanted = [text for text in call.body.get("workerIds") or [] if text != ""]
        indices = range(len(workers)) if not wanted else [_index(text, workers) for text in wanted]
        path = str(call.body.get("queryPath") or "")
        booted = self._state(name) == "READY"
        answers = [_guest_attributes(workers[i], path) if booted else [] for i in indices]
        return {
            "guestAttributes": [{"queryPath": path, "queryValue": {"items": a}} for a in answers]
        }

    def view(self, name: str) -> Json:
        """Return the node as the API answers it."""
        node: Json = self._records[name]["node"]
        if node["state"] == "CREATING":
            return dict(node)
        external = node["networkConfig"]["enableExternalIps"]
        endpoints = [_endpoint(worker, external) for worker in self.workers(name)]
        health = {"health": "HEALTHY"} if node["state"] == "READY" else {}
        return {**node, **health, "networkEndpoints": endpoints}

    def workers(self, name: str) -> Sequence[WorkerRecord]:
        return [WorkerRecord.parse(worker) for worker in self._records[name]["workers"]]

    def complete(self, operation: str, record: Json) -> None:
        """Let an operation that fell due happen."""
        name, verb, failure = record["target"], record["verb"], record["failure"]
        if verb == "create" and failure:
            failure = self._remove(name) or failure
        elif verb in ("create", "start"):
            failure = self._boot(name, "TERMINATED" if verb == "create" else "STOPPED")
        elif verb == "delete":
            failure = self._remove(name)
        elif verb == "stop":
            self._set_state(name, "STOPPED")
        elif verb == "update":
            self._change(name, record["change"])
        response = self.view(name) if name in self._records else None
        self._operations.finish(operation, response, failure)

    def boot_ready(self) -> None:
        """Bring the workers back after a restart of the emulator."""
        for name in list(self._records):
            if self._state(name) == "READY":
                self._boot(name, "TERMINATED")

    def _begin(
        self, call: Call, verb: str, name: str, seconds: float, change: Json | None = None
    ) -> Json:
        return self._operations.view(self._operations.begin(call, verb, name, seconds, change))

    def _boot(self, name: str, fallback: str) -> Json | None:
        try:
            self._host.boot(self._records[name]["node"], self.workers(name))
        except (TpukitError, OSError) as error:
            return self._broken(name, fallback, f"the workers cannot start: {error}")
        self._set_state(name, "READY")
        return None

    def _remove(self, name: str) -> Json | None:
        try:
            self._host.discard(name)
        except (TpukitError, OSError) as error:
            return self._broken(name, "TERMINATED", f"the workers cannot be removed: {error}")
        del self._records[name]
        self._context.changed = True
        return None

    def _broken(self, name: str, state: str, why: str) -> Json:
        """Leave a node whose workers do not obey in a state from which it can be deleted."""
        self._set_state(name, state)
        return Status("INTERNAL", why).operation_error()

    def _change(self, name: str, change: Json) -> None:
        node = dict(self._records[name]["node"])
        for path, value in change.items():
            if path == _EXTERNAL:
                node["networkConfig"] = {**node["networkConfig"], "enableExternalIps": value}
            elif value is None:
                node.pop(path, None)
            else:
                node[path] = value
        self._put(name, node)

    def _set_state(self, name: str, state: str) -> None:
        self._put(name, {**self._records[name]["node"], "state": state})

    def _put(self, name: str, node: Json) -> None:
        self._records[name] = {**self._records[name], "node": node}
        self._context.changed = True

    def _state(self, name: str) -> str:
        return str(self._records[name]["node"]["state"])

    def _find(self, call: Call) -> str:
        self._catalogue.check_zone(call)
        name = f"{call.parent}/nodes/{call.path['node']}"
        if name not in self._records:
            raise _not_found(name)
        return name

    def _changeable(self, call: Call, verb: str, states: set[str]) -> str:
        name = self._find(call)
        if self._state(name) not in states:
            # Source: skypilot-org/skypilot#1468 has this sentence for update and PREEMPTED.
            refusal = f"{verb} is not supported while in state {self._state(name)}"
            raise self._context.bad_request(refusal)
        if self._operations.pending(name):
            raise self._conflict(name)
        return name

    def _conflict(self, name: str) -> ApiError:
        # 409 ABORTED is AIP-151's answer to a parallel operation; gcloud expects a 409 when two
        # users add a key at once: command_lib/compute/tpus/tpu_vm/ssh.py.
        return ApiError("ABORTED", f"Another operation on '{name}' is in progress.")

    def _refuse_pod(self, name: str, done: str) -> None:
        # Documentation "Manage TPUs": a slice of several workers can only be deleted. The words
        # of the real refusal are not on record.
        if len(self._records[name]["workers"]) > 1:
            raise self._context.bad_request(f"a slice with several workers cannot be {done}")


def _camel_path(path: str) -> str:
    return ".".join(camel(part) for part in path.strip().split("."))


def _not_found(name: str) -> ApiError:
    return ApiError("NOT_FOUND", f"Resource '{name}' was not found")


def _endpoint(worker: WorkerRecord, external: bool) -> Json:
    access = {"accessConfig": {"externalIp": worker.address}} if external else {}
    return {"ipAddress": worker.address, "port": 8470, **access}


def _index(text: str, workers: Sequence[WorkerRecord]) -> int:
    if not str(text).isdecimal() or int(text) >= len(workers):
        raise ApiError("INVALID_ARGUMENT", f"Invalid worker id {text!r}")
    return int(text)


def _guest_attributes(worker: WorkerRecord, path: str) -> Sequence[Json]:
    """Return what the worker published below `path`, a namespace or a namespace and a key.

    gcloud looks for the key `hostname`, the guest agent writes `Hostname`: both are here. The
    namespace `ssh` is the emulator's own, and only where its port is not the usual one.
    """
    kind, body = worker.host_public_key.split()[:2]
    entries = [
        ("guestInventory", "Hostname", worker.hostname),
        ("guestInventory", "hostname", worker.hostname),
        ("hostkeys", kind, body),
    ]
    if worker.port != 22:
        entries.append(("ssh", "port", str(worker.port)))
    return [
        {"namespace": namespace, "key": key, "value": value}
        for namespace, key, value in entries
        if path.strip("/") in ("", namespace, f"{namespace}/{key}")
    ]
