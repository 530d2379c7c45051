"""The provider for slices of one worker through the Compute Engine API, over plain REST.

Each write has a request id. `compute_slices` adds slices of several workers.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from tpukit.errors import BadInput, Fix, NameTaken, NotFound, TpukitError
from tpukit.google import instance_json
from tpukit.google.compute_machines import types_on
from tpukit.google.failures import from_operation, reading, to_error
from tpukit.google.firewall_rules import project_url
from tpukit.google.node_json import field, last_part
from tpukit.google.provider import Doubtful
from tpukit.google.rest_provider import RestProvider
from tpukit.google.retrying_session import Session
from tpukit.google.worker_identity import read_identity
from tpukit.models import (
    ApiCall,
    QueuedResource,
    QueuedResourceList,
    QueueRequest,
    Slice,
    SliceChange,
    SliceList,
    SliceRequest,
    WorkerIdentity,
)
from tpukit.text import one_line

_PREEMPTED = "compute.instances.preempted"
#: The states that a preemption may explain. A group is REPAIRING if some of its machines run on.
_ENDING = ("STOPPING", "STOPPED", "REPAIRING")
#: The types of operations that delete a slice.
_DELETES = ("delete", "compute.instanceGroupManagers.delete")


class ComputeInstances(RestProvider):
    """The instances with TPUs of one project, as slices."""

    def __init__(
        self, session: Session, project: str, endpoint: str, new_id: Callable[[], object] = uuid4
    ) -> None:
        super().__init__(session, project, endpoint, instance_json.API)
        self._url = project_url(endpoint, project)
        self._new_id = new_id

    def get(self, zone: str, name: str) -> Slice:
        """Return a slice; raise `NotFound` if no machine with TPUs has the name."""
        doing = f"read slice {name}"
        instance = self._resource(doing, instance_path(zone, name))
        with reading(doing):
            if not instance_json.is_slice(instance):
                raise NotFound(f"cannot {doing}: {one_line(name)} is a machine without TPUs")
            return self._read(instance)

    def list(self, zone: str) -> SliceList:
        instances, silent = self._items("list slices", "instances", zone)
        return SliceList(self._singles(instances), silent)

    def zones(self) -> tuple[str, ...]:
        return tuple(sorted(self._names("zones", "zones")))

    def accelerator_types(self, zone: str) -> frozenset[str]:
        machines = self._names("machine types", f"zones/{zone}/machineTypes")
        return frozenset(kind for machine in machines for kind in types_on(machine))

    def runtime_versions(self, zone: str) -> frozenset[str]:
        """Return no names: any image family may do, and an unknown one is refused at once."""
        return frozenset()

    def list_queued(self, zone: str) -> QueuedResourceList:
        return QueuedResourceList(())

    def get_queued(self, zone: str, name: str) -> QueuedResource:
        """Raise `NotFound`, because Compute Engine has no queue."""
        raise NotFound(f"Compute Engine has no queued resource {name}")

    def create_queued(self, request: QueueRequest) -> str:
        """Raise `BadInput`, because Compute Engine has no queue."""
        raise BadInput("Compute Engine has no queued resources")

    def delete_queued(self, zone: str, name: str, *, force: bool) -> str:
        """Raise `NotFound`, because Compute Engine has no queue."""
        raise NotFound(f"Compute Engine has no queued resource {name}")

    def create(self, request: SliceRequest) -> str:
        instance_json.check_capacity(request.provisioning, request.reservation)
        created, doing = request.labels.get("tpukit-created", ""), f"create slice {request.name}"
        try:
            return self._write(
                doing,
                "POST",
                f"zones/{request.zone}/instances",
                instance_json.insert_fields(request),
                given=instance_json.request_id(request, created),
                creates=True,
            )
        except NameTaken as taken:
            with suppress(NotFound):
                path = instance_path(request.zone, request.name)
                if not instance_json.is_slice(self._resource(doing, path)):
                    raise taken_by_others(doing, f"machine {request.name}") from taken
            raise

    def delete(self, zone: str, name: str) -> str:
        return self._write(f"delete slice {name}", "DELETE", instance_path(zone, name))

    def start(self, zone: str, name: str) -> str:
        return self._write(f"start slice {name}", "POST", f"{instance_path(zone, name)}/start")

    def stop(self, zone: str, name: str) -> str:
        return self._write(f"stop slice {name}", "POST", f"{instance_path(zone, name)}/stop")

    def update(self, zone: str, name: str, change: SliceChange) -> str:
        """Replace parts by read-modify-write, one call for each part.

        Its fingerprints make Google refuse the write if another came in between; then it is
        `Doubtful`. The items that Google itself writes into the metadata stay. Raises `BadInput`
        for other data disks, which tpukit cannot change there.
        """
        if change.data_disks is not None:
            raise BadInput("the data disks of a slice on Compute Engine cannot be changed")
        doing, operation = f"update slice {name}", ""
        instance = self._resource(doing, instance_path(zone, name))
        with reading(doing):
            bodies = _change_fields(instance, change)
        for verb, body in bodies.items():
            path = f"{instance_path(zone, name)}/{verb}"
            try:
                operation = self._write(doing, "POST", path, body)
            except TpukitError as error:
                if error.reason.startswith("FAILED_PRECONDITION"):
                    raise Doubtful(error.what, reason=error.reason) from error
                raise
        return operation

    def operations(self, zone: str, name: str, verb: str, since: str = "") -> frozenset[str]:
        """Return the operations that delete a slice.

        Those that update it matter to nobody: its fingerprints let no update undo another.
        """
        if verb == "update":
            return frozenset()
        kinds = ("instances", "instanceGroupManagers")
        targets = tuple(f"/zones/{zone}/{kind}/{name}" for kind in kinds)
        return frozenset(
            f"projects/{self._project}/zones/{zone}/operations/{one_line(operation['name'])}"
            for operation in self._operations(zone)
            if str(operation.get("targetLink")).endswith(targets)
            and operation.get("operationType") in _DELETES
            and instance_json.utc(str(operation.get("insertTime") or ""))[:19] >= since[:19]
        )

    def failure(self, operation: str, doing: str) -> TpukitError | None:
        try:
            return self._failure_of(self._operation(operation), doing)
        except NotFound:
            return None

    def _failure_of(self, answer: Any, doing: str) -> TpukitError | None:
        if answer.get("status") != "DONE" or not answer.get("error"):
            return None
        with reading(doing):
            return errors_of(field(answer, "error", dict, {}), doing)

    def _operation(self, name: str) -> dict[str, Any]:
        path = name.partition("/")[2].partition("/")[2]  # without projects/P
        return self._session.rest("read an operation", "GET", f"{self._url}/{path}")

    def identities(self, zone: str, name: str) -> tuple[WorkerIdentity, ...]:
        doing = f"read the guest attributes of slice {name}"
        url = f"{self._url}/{instance_path(zone, name)}/getGuestAttributes"
        try:
            answer = self._session.rest(doing, "GET", url)
        except NotFound:  # the guest has published nothing yet
            return ()
        with reading(doing):
            identity = read_identity(0, answer)
            return (replace(identity, hostname=identity.hostname or name),)

    def _resource(self, doing: str, path: str) -> dict[str, Any]:
        """Return the resource with a path; raise our error if the answer is not that resource."""
        answer = self._session.rest(doing, "GET", f"{self._url}/{path}")
        with reading(doing):
            if field(answer, "name", str, "") != last_part(path):
                raise ValueError("it is not the resource of that name")
        return answer

    def _singles(self, instances: Iterable[Any]) -> tuple[Slice, ...]:
        """Return the slices among some instances; raise our error for one without a name."""
        with reading("list slices"):
            return tuple(map(self._read, filter(instance_json.is_slice, instances)))

    def _read(self, instance: Any) -> Slice:
        slice_ = instance_json.read_instance(instance, self._project)
        return self._with_cause(slice_, (slice_.id,) if slice_.state != "REPAIRING" else ())

    def _with_cause(self, slice_: Slice, ended: Collection[str]) -> Slice:
        """Return a spot slice as PREEMPTED if Google has ended machines of it, by their ids."""
        spot = slice_.provisioning in ("spot", "preemptible")
        if not (ended and spot and slice_.state in _ENDING):
            return slice_
        mine = [
            operation
            for operation in self._operations(slice_.zone)
            if operation.get("targetId") in ended
            and operation.get("operationType") in (_PREEMPTED, "stop", "delete")
        ]
        last = max(mine, key=_moment, default={})
        preempted = last.get("operationType") == _PREEMPTED
        return instance_json.ended_by_google(slice_) if preempted else slice_

    def _operations(self, zone: str) -> Sequence[dict[str, Any]]:
        doing, operations = "list operations", list[dict[str, Any]]()
        url = f"{self._url}/zones/{zone}/operations"
        for page in self._session.pages(doing, url, {"maxResults": 500}):
            with reading(doing):
                operations += field(page, "items", list, [])
        return [one for one in operations if isinstance(one, dict)]

    def _items(
        self, doing: str, collection: str, zone: str, place: str = "", matching: str = ""
    ) -> tuple[Sequence[Any], tuple[str, ...]]:
        """List a collection in all zones for `-`, else in a place (default: the zone).

        Returns its items, of which `matching` is the filter, and the names of silent zones.
        """
        items, silent, everywhere = builtins.list[Any](), builtins.list[str](), zone == "-"
        query: dict[str, str | int] = {"maxResults": 500, "returnPartialSuccess": "true"}
        query |= {"filter": matching} if matching else {}
        place = "aggregated" if everywhere else place or f"zones/{zone}"
        for page in self._session.pages(doing, f"{self._url}/{place}/{collection}", query):
            with reading(doing):
                # https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList
                scopes = field(page, "items", dict, {}).values() if everywhere else ()
                items += [one for scope in scopes for one in field(scope, collection, list, [])]
                items += field(page, "items", list, []) if not everywhere else []
                silent += [last_part(scope) for scope in field(page, "unreachables", list, [])]
        return items, tuple(dict.fromkeys(silent))

    def _names(self, what: str, path: str) -> Sequence[str]:
        doing, names = f"list {what}", list[str]()
        for page in self._session.pages(doing, f"{self._url}/{path}", {"maxResults": 500}):
            with reading(doing):
                entries = field(page, "items", list, [])
                names += [one_line(field(entry, "name", str, "")) for entry in entries]
        return names

    def _write(
        self,
        doing: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        given: str = "",
        creates: bool = False,
    ) -> str:
        """Make a call that writes and return the name of its operation; only note a planned one."""
        query = urlencode({"requestId": given or str(self._new_id())})
        url = f"{self._url}/{path}?{query}"
        if self._note:
            self._note(ApiCall(method, url, body))
            return ""
        answer = self._session.rest(doing, method, url, body=body, repeat=False, named=not creates)
        with reading(doing, reading_back=True):
            name = field(answer, "name", str, "")
            if not name:
                raise ValueError("an operation without a name")
            place = "/".join(path.split("/")[:2])  # zones/Z, or regions/R
            return f"projects/{self._project}/{place}/operations/{one_line(name)}"


def instance_path(zone: str, name: str) -> str:
    """Return the path of an instance below its project."""
    return f"zones/{zone}/instances/{name}"


def taken_by_others(doing: str, thing: str) -> NameTaken:
    """Return the error if a part of a slice has the name of somebody else's thing."""
    return NameTaken(
        f"cannot {doing}: another {thing} exists",
        fix=Fix(note="choose another name"),
        retry="other-zone",
    )


def errors_of(document: Any, doing: str) -> TpukitError:
    """Return our error for the first of the API's `errors`; raise ValueError for other JSON."""
    errors = field(document, "errors", list, [])
    first = errors[0] if errors else {}
    code, message = field(first, "code", str, ""), field(first, "message", str, "")
    # Google names a stockout in the code alone: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS.
    status = {"code": 5 if "NOT_FOUND" in code else 2, "message": f"{message} ({code})"}
    return to_error(from_operation(status, capacity=False), doing)


def _change_fields(instance: Any, change: SliceChange) -> Mapping[str, Any]:
    """Return the bodies of the calls that make a change, by their verbs."""
    bodies: dict[str, Any] = {}
    if change.labels is not None:
        mark = field(instance, "labelFingerprint", str, "")
        bodies["setLabels"] = {"labels": dict(change.labels), "labelFingerprint": mark}
    if change.tags is not None:
        mark = field(field(instance, "tags", dict, {}), "fingerprint", str, "")
        bodies["setTags"] = {"items": list(change.tags), "fingerprint": mark}
    if change.metadata is not None:
        mark = field(field(instance, "metadata", dict, {}), "fingerprint", str, "")
        items = instance_json.item_fields(instance_json.kept_items(instance, change.metadata))
        bodies["setMetadata"] = {"items": items, "fingerprint": mark}
    return bodies


def _moment(operation: dict[str, Any]) -> str:
    return instance_json.utc(str(operation.get("insertTime") or ""))
