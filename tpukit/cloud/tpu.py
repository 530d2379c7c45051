"""Slices as nodes of the Cloud TPU API v2: the only importer of google-cloud-tpu.

REST transport: the default gRPC one costs 75 ms more CPU, wants TLS and cannot be pointed at a
local endpoint. No method of the library has a timeout or a retry of its own, so each call gets
both here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Self

from google.api_core.client_options import ClientOptions
from google.cloud import tpu_v2
from google.protobuf.json_format import ParseError

from tpukit.cloud.credentials import SCOPES
from tpukit.cloud.failures import RestFailure, from_operation, to_error, unreadable
from tpukit.cloud.provider import SliceProvider
from tpukit.cloud.session import Session
from tpukit.errors import TpukitError
from tpukit.models import DataDisk, Slice, SliceList, SliceRequest, Worker, WorkerIdentity
from tpukit.settings.table import is_loopback
from tpukit.text import one_line

PAGE_SIZE = 500
_PROVISIONING = {"on-demand": {}, "spot": {"spot": True}, "preemptible": {"preemptible": True}}
_PROVISIONING["reserved"] = {"reserved": True}


class CloudTpu(SliceProvider):
    """The slices of one project, through `nodes` of the Cloud TPU API."""

    def __init__(self, session: Session, project: str, endpoint: str) -> None:
        options = ClientOptions(api_endpoint=endpoint.rstrip("/"))
        self._client = tpu_v2.TpuClient(
            credentials=session.credentials, transport="rest", client_options=options
        )
        self.bills = not is_loopback(endpoint)
        self._session = session
        self._project = project
        self._root = f"{endpoint.rstrip('/')}/v2"
        self._options: dict[str, Any] = {"timeout": session.timeout, "retry": None}

    def once(self) -> Self:
        other = copy(self)
        other._session = self._session.once()
        return other

    def get(self, zone: str, name: str) -> Slice:
        return _slice(self._call(f"read slice {name}", "get_node", self._named(zone, name)))

    def list(self, zone: str) -> SliceList:
        parent = f"projects/{self._project}/locations/{zone}"
        slices: list[Slice] = []
        unreachable: list[str] = []
        token = ""
        while True:
            wanted = {"parent": parent, "page_size": PAGE_SIZE, "page_token": token}
            # The pager's first raw page: its iterator would fetch the next without our retries.
            page = self._call("list slices", "list_nodes", wanted)._response
            slices += [_slice(node) for node in page.nodes]
            unreachable += [one_line(location) for location in page.unreachable]
            token = page.next_page_token
            if not token:
                return SliceList(tuple(slices), tuple(unreachable))

    def create(self, request: SliceRequest) -> str:
        parent = f"projects/{self._project}/locations/{request.zone}"
        wanted = {"parent": parent, "node_id": request.name, "node": _node(request)}
        return self._operation(f"create slice {request.name}", "create_node", wanted)

    def delete(self, zone: str, name: str) -> str:
        return self._operation(f"delete slice {name}", "delete_node", self._named(zone, name))

    def start(self, zone: str, name: str) -> str:
        return self._operation(f"start slice {name}", "start_node", self._named(zone, name))

    def stop(self, zone: str, name: str) -> str:
        return self._operation(f"stop slice {name}", "stop_node", self._named(zone, name))

    def replace_metadata(self, zone: str, name: str, metadata: Mapping[str, str]) -> str:
        return self._update(zone, name, repeat=False, metadata=dict(metadata))

    def replace_tags(self, zone: str, name: str, tags: Sequence[str]) -> str:
        return self._update(zone, name, repeat=True, tags=list(tags))

    def failure(self, operation: str, doing: str) -> TpukitError | None:
        """Read it as plain JSON: the library refuses one with a detail that it does not know."""
        answer = self._session.rest("read an operation", "GET", f"{self._root}/{operation}")
        error = answer.get("error")
        if not answer.get("done") or not error:
            return None
        return to_error(from_operation(error if isinstance(error, dict) else {}), doing)

    def identities(self, zone: str, name: str) -> tuple[WorkerIdentity, ...]:
        doing = f"read the guest attributes of slice {name}"
        answer = self._call(doing, "get_guest_attributes", self._named(zone, name))
        return tuple(
            _identity(index, attributes) for index, attributes in enumerate(answer.guest_attributes)
        )

    def _update(self, zone: str, name: str, *, repeat: bool, **changed: Any) -> str:
        node = {**self._named(zone, name), **changed}
        wanted = {"node": node, "update_mask": {"paths": [*changed]}}
        return self._operation(f"update slice {name}", "update_node", wanted, repeat=repeat)

    def _operation(self, doing: str, method: str, request: Any, *, repeat: bool = False) -> str:
        return str(self._call(doing, method, request, repeat=repeat).operation.name)

    def _call(self, doing: str, method: str, request: Any, *, repeat: bool = True) -> Any:
        call = partial(getattr(self._client, method), request, **self._options)
        return self._session.call(doing, lambda: _readable(call), repeat=repeat)

    def _named(self, zone: str, name: str) -> dict[str, str]:
        return {"name": f"projects/{self._project}/locations/{zone}/nodes/{name}"}


def _readable(request: Callable[[], Any]) -> Any:
    """Make a call; the library fails in its own code on an answer that is not the API's."""
    try:
        return request()
    except (ParseError, AttributeError, KeyError, TypeError) as error:
        raise RestFailure(unreadable(error)) from error


def _node(request: SliceRequest) -> tpu_v2.Node:
    disks = [
        {"source_disk": disk.source, "mode": "READ_ONLY" if disk.read_only else "READ_WRITE"}
        for disk in request.data_disks
    ]
    # `tpu_v2.ServiceAccount`: no scope at all means access to all Cloud APIs. Said all the same.
    account = {"email": request.service_account, "scope": list(SCOPES)}
    return tpu_v2.Node(
        accelerator_type=request.accelerator_type,
        runtime_version=request.runtime_version,
        # Python clients default to no external address where gcloud defaults to one: always set it.
        network_config={
            "network": request.network,
            "subnetwork": request.subnetwork,
            "enable_external_ips": request.external_addresses,
        },
        scheduling_config=_PROVISIONING[request.provisioning],
        service_account=account if request.service_account else None,
        labels=dict(request.labels),
        tags=list(request.tags),
        metadata=dict(request.metadata),
        data_disks=disks,
    )


def _slice(node: Any) -> Slice:
    parts = node.name.split("/")
    if len(parts) != 6:
        # json_format reads JSON of quite another shape as a message without any field.
        raise to_error(unreadable(ValueError("a node without its full name")), "read slices")
    _, project, _, zone, _, name = parts
    raw = tpu_v2.Node.pb(node)  # its enum fields warn of numbers that the library does not know
    return Slice(
        name=one_line(name),
        project=one_line(project),
        zone=one_line(zone),
        accelerator_type=one_line(node.accelerator_type),
        runtime_version=one_line(node.runtime_version),
        state=_word(tpu_v2.Node.State, raw.state),
        health=_word(tpu_v2.Node.Health, raw.health),
        health_description=one_line(node.health_description),
        topology=one_line(node.accelerator_config.topology),
        network=one_line(node.network_config.network).rpartition("/")[2],
        subnetwork=one_line(node.network_config.subnetwork).rpartition("/")[2],
        workers=tuple(_worker(index, each) for index, each in enumerate(node.network_endpoints)),
        labels={one_line(key): one_line(value) for key, value in node.labels.items()},
        tags=tuple(one_line(tag) for tag in node.tags),
        metadata=dict(node.metadata),
        provisioning=_provisioning(node.scheduling_config),
        created=node.create_time.isoformat() if node.create_time else "",
        queued_resource=one_line(node.queued_resource).rpartition("/")[2],
        service_account=one_line(node.service_account.email),
        external_addresses=bool(node.network_config.enable_external_ips),
        data_disks=tuple(_disk(each) for each in node.data_disks),
    )


def _disk(attached: Any) -> DataDisk:
    read_only = tpu_v2.AttachedDisk.pb(attached).mode == tpu_v2.AttachedDisk.DiskMode.READ_ONLY
    return DataDisk(one_line(attached.source_disk), read_only)


def _worker(index: int, endpoint: Any) -> Worker:
    return Worker(
        index=index,
        internal_address=one_line(endpoint.ip_address),
        external_address=one_line(endpoint.access_config.external_ip),
    )


def _provisioning(scheduling: Any) -> str:
    flags = ("spot", "preemptible", "reserved")
    return next((flag for flag in flags if getattr(scheduling, flag)), "on-demand")


def _word(enumeration: Any, value: Any) -> str:
    """Return the API's word; a number that this library's version does not know stays a number."""
    try:
        word = str(enumeration(value).name)
    except ValueError:
        return str(int(value))
    return "" if word.endswith("_UNSPECIFIED") else word


def _identity(index: int, attributes: Any) -> WorkerIdentity:
    items = {
        (entry.namespace, entry.key): one_line(entry.value)
        for entry in attributes.query_value.items
    }
    host_keys = tuple(
        value if value.startswith(kind) else f"{kind} {value}"
        for (namespace, kind), value in items.items()
        if namespace == "hostkeys" and value
    )
    port = items.get(("ssh", "port"), "")
    return WorkerIdentity(
        index=index,
        host_keys=host_keys,
        hostname=items.get(("guestInventory", "Hostname"), ""),
        ssh_port=int(port) if port.isdecimal() and 0 < int(port) < 65536 else 22,
    )
