"""The provider for the Cloud TPU API v2, over plain REST.

Google's client refuses an answer with a message type that it does not know, and recorded operations
have one (google.cloud.common.OperationMetadata). So we read answers as raw JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode
from uuid import NAMESPACE_URL, uuid5

from tpukit.errors import NotFound, TpukitError
from tpukit.google.failures import from_operation, reading, to_error
from tpukit.google.node_json import (
    API,
    Read,
    change_fields,
    field,
    last_part,
    node_fields,
    queued_fields,
    read_operation,
    read_queued,
    read_slice,
)
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

Listed = TypeVar("Listed")

PAGE_SIZE = 500
#: Verbs of operations that need no capacity. An operation without a verb may be a create.
_NO_CAPACITY = ("delete", "stop", "update")


class CloudTpu(RestProvider):
    """The slices of one project, through `nodes` of the Cloud TPU API."""

    def __init__(self, session: Session, project: str, endpoint: str) -> None:
        super().__init__(session, project, endpoint, API)
        self._endpoint = endpoint.rstrip("/")

    def get(self, zone: str, name: str) -> Slice:
        doing = f"read slice {name}"
        node = self._session.rest(doing, "GET", self._url(self._node(zone, name)))
        with reading(doing):
            return _of_that_name(read_slice(node), zone, name)

    def list(self, zone: str) -> SliceList:
        return SliceList(*self._listed("list slices", zone, "nodes", read_slice))

    def list_queued(self, zone: str) -> QueuedResourceList:
        listed = self._listed("list queued resources", zone, "queuedResources", read_queued)
        return QueuedResourceList(*listed)

    def get_queued(self, zone: str, name: str) -> QueuedResource:
        doing = f"read queued resource {name}"
        queued = self._session.rest(doing, "GET", self._url(self._queued(zone, name)))
        with reading(doing):
            return _of_that_name(read_queued(queued), zone, name)

    def create_queued(self, request: QueueRequest) -> str:
        name, nonce = request.slice.name, request.slice.labels.get("tpukit-nonce", "")
        parent = self._location(request.slice.zone)
        return self._write(
            f"create queued resource {name}",
            "POST",
            f"{parent}/queuedResources",
            queued_fields(request, parent),
            # Only v2alpha1 has fields for best effort and flex-start (discovery document of 2026).
            version="v2alpha1" if request.slice.queue_only else "v2",
            query={
                "queuedResourceId": name,
                # Two creates with the same request id count as one: AIP-155.
                "requestId": str(uuid5(NAMESPACE_URL, f"{parent}/queuedResources/{name}#{nonce}")),
            },
        )

    def delete_queued(self, zone: str, name: str, *, force: bool) -> str:
        doing, resource = f"delete queued resource {name}", self._queued(zone, name)
        return self._write(doing, "DELETE", resource, query={"force": "true"} if force else {})

    def zones(self) -> tuple[str, ...]:
        # https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations/list
        return tuple(sorted(self._names("zones", "locations", "locationId")))

    def accelerator_types(self, zone: str) -> frozenset[str]:
        return self._names("accelerator types", f"locations/{zone}/acceleratorTypes", "type")

    def runtime_versions(self, zone: str) -> frozenset[str]:
        return self._names("runtime versions", f"locations/{zone}/runtimeVersions", "version")

    def create(self, request: SliceRequest) -> str:
        doing, resource = f"create slice {request.name}", f"{self._location(request.zone)}/nodes"
        query = {"nodeId": request.name}
        return self._write(doing, "POST", resource, node_fields(request), query=query)

    def delete(self, zone: str, name: str) -> str:
        return self._write(f"delete slice {name}", "DELETE", self._node(zone, name))

    def start(self, zone: str, name: str) -> str:
        return self._write(f"start slice {name}", "POST", f"{self._node(zone, name)}:start", {})

    def stop(self, zone: str, name: str) -> str:
        return self._write(f"stop slice {name}", "POST", f"{self._node(zone, name)}:stop", {})

    def update(self, zone: str, name: str, change: SliceChange) -> str:
        changed, resource = change_fields(change), self._node(zone, name)
        doing, query = f"update slice {name}", {"updateMask": ",".join(changed)}
        return self._write(doing, "PATCH", resource, changed, query=query)

    def operations(self, zone: str, name: str, verb: str, since: str = "") -> frozenset[str]:
        doing, target = f"list the operations of slice {name}", f"/locations/{zone}/nodes/{name}"
        url, names = self._url(f"{self._location(zone)}/operations"), set()
        for page in self._session.pages(doing, url, {"pageSize": PAGE_SIZE}):
            with reading(doing):
                for operation in field(page, "operations", list, []):
                    about = field(operation, "metadata", dict, {})
                    # The target may have the number of the project in place of its id.
                    ours = str(about.get("target")).endswith(target) and about.get("verb") == verb
                    if ours and str(about.get("createTime"))[:19] >= since[:19]:
                        names.add(field(operation, "name", str, ""))
        return frozenset(names)

    def failure(self, operation: str, doing: str) -> TpukitError | None:
        try:
            answer = self._session.rest("read an operation", "GET", self._url(operation))
        except NotFound:  # the API deletes old operations: google.longrunning, "Operations"
            return None
        error = answer.get("error")
        if not answer.get("done") or not error:
            return None
        about = answer.get("metadata")
        capacity = not isinstance(about, dict) or about.get("verb") not in _NO_CAPACITY
        known = error if isinstance(error, dict) else {}
        return to_error(from_operation(known, capacity=capacity), doing)

    def identities(self, zone: str, name: str) -> tuple[WorkerIdentity, ...]:
        doing = f"read the guest attributes of slice {name}"
        url = self._url(f"{self._node(zone, name)}:getGuestAttributes")
        answer = self._session.rest(doing, "POST", url, body={})
        with reading(doing):
            workers = field(answer, "guestAttributes", list, [])
            return tuple(read_identity(index, worker) for index, worker in enumerate(workers))

    def _listed(
        self, doing: str, zone: str, collection: str, read: Callable[[Any], Listed]
    ) -> tuple[tuple[Listed, ...], tuple[str, ...]]:
        """Return the resources of a list call, and the zones that did not answer."""
        resources: list[Listed] = []
        unreachable: list[str] = []
        url = self._url(f"{self._location(zone)}/{collection}")
        for page in self._session.pages(doing, url, {"pageSize": PAGE_SIZE}):
            with reading(doing):
                resources += map(read, field(page, collection, list, []))
                # projects/P/locations/Z
                unreachable += map(last_part, field(page, "unreachable", list, []))
        return tuple(resources), tuple(dict.fromkeys(unreachable))

    def _names(self, what: str, path: str, name: str) -> frozenset[str]:
        """Return the field `name` of each entry in a collection of the project."""
        doing, url = f"list {what}", self._url(f"projects/{self._project}/{path}")
        collection = path.rpartition("/")[2]
        names: set[str] = set()
        for page in self._session.pages(doing, url, {"pageSize": PAGE_SIZE}):
            with reading(doing):
                entries = field(page, collection, list, [])
                names.update(one_line(field(entry, name, str, "")) for entry in entries)
        return frozenset(names)

    def _write(
        self,
        doing: str,
        method: str,
        resource: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        version: str = "v2",
    ) -> str:
        """Make a call that writes and return the name of its operation; only note a planned one."""
        url = self._url(resource, version) + (f"?{urlencode(query)}" if query else "")
        creates = method == "POST" and ":" not in resource
        if self._note:
            self._note(ApiCall(method, url, body))
            return ""
        answer = self._session.rest(doing, method, url, body=body, repeat=False, named=not creates)
        with reading(doing, reading_back=True):
            return read_operation(answer)

    def _location(self, zone: str) -> str:
        return f"projects/{self._project}/locations/{zone}"

    def _node(self, zone: str, name: str) -> str:
        return f"{self._location(zone)}/nodes/{name}"

    def _queued(self, zone: str, name: str) -> str:
        return f"{self._location(zone)}/queuedResources/{name}"

    def _url(self, resource: str, version: str = "v2") -> str:
        return f"{self._endpoint}/{version}/{quote(resource, safe='/:')}"


def _of_that_name(resource: Read, zone: str, name: str) -> Read:
    """Return the resource; raise ValueError if it has another name or zone than the one read."""
    if (resource.zone, resource.name) != (zone, name):
        raise ValueError("it is not the resource of that name")
    return resource
