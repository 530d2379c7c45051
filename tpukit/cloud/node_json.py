"""A node of the Cloud TPU API and our models: what its JSON means, what a create asks for.

The API grows: a field that is not known here is passed over, a word of an enumeration passed on. A
field that is known and of another type makes the answer unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from tpukit.cloud.credentials import SCOPES
from tpukit.models import (
    DataDisk,
    QueuedResource,
    QueueRequest,
    Slice,
    SliceChange,
    SliceRequest,
    Worker,
    WorkerIdentity,
)
from tpukit.text import one_line

Json = Mapping[str, Any]
Kind = TypeVar("Kind")

#: The API that the slices of this module live in.
API = "tpu"
#: Characters that are kept of a text of one line.
_LONGEST = 2048
_PROVISIONING = ("spot", "preemptible", "reserved")


def read_slice(node: Any) -> Slice:
    """Return the slice that a node is; raise ValueError for what is no node."""
    name = field(node, "name", str, "").split("/")
    if len(name) != 6:
        raise ValueError("a node without its full name")
    network = field(node, "networkConfig", dict, {})
    scheduling = field(node, "schedulingConfig", dict, {})
    return Slice(
        name=_line(name[5]),
        project=_line(name[1]),
        zone=_line(name[3]),
        api=API,
        accelerator_type=_text(node, "acceleratorType"),
        runtime_version=_text(node, "runtimeVersion"),
        state=_word(node, "state"),
        health=_word(node, "health"),
        health_description=_text(node, "healthDescription"),
        topology=_text(field(node, "acceleratorConfig", dict, {}), "topology"),
        network=_last(network, "network"),
        network_project=_owner(field(network, "network", str, "")),
        subnetwork=_last(network, "subnetwork"),
        workers=tuple(
            _worker(index, each)
            for index, each in enumerate(field(node, "networkEndpoints", list, []))
        ),
        labels={_line(key): _line(value) for key, value in _texts(node, "labels").items()},
        tags=tuple(_line(tag) for tag in field(node, "tags", list, [])),
        metadata=_texts(node, "metadata"),
        provisioning=next(
            (each for each in _PROVISIONING if field(scheduling, each, bool, False)), "on-demand"
        ),
        created=_text(node, "createTime"),
        queued_resource=_last(node, "queuedResource"),
        service_account=_text(field(node, "serviceAccount", dict, {}), "email"),
        external_addresses=field(network, "enableExternalIps", bool, False),
        data_disks=tuple(_disk(each) for each in field(node, "dataDisks", list, [])),
    )


def read_queued(document: Any) -> QueuedResource:
    """Return the queued resource that a JSON object is; raise ValueError for what is none."""
    name = field(document, "name", str, "").split("/")
    if len(name) != 6:
        raise ValueError("a queued resource without its full name")
    state = field(document, "state", dict, {})
    specs = field(field(document, "tpu", dict, {}), "nodeSpec", list, [])
    node = field(specs[0], "node", dict, {}) if specs else {}
    error = field(field(state, "failedData", dict, {}), "error", dict, {})
    reserved = field(document, "reservationName", str, "")
    return QueuedResource(
        name=_line(name[5]),
        project=_line(name[1]),
        zone=_line(name[3]),
        state=_word(state, "state"),
        initiator=_word(state, "stateInitiator"),
        error=_text(error, "message"),
        slices=tuple(each for spec in specs for each in _slices_of(spec, name[5])),
        accelerator_type=_text(node, "acceleratorType"),
        provisioning="spot" if "spot" in document else "reserved" if reserved else "on-demand",
        labels={_line(key): _line(value) for key, value in _texts(node, "labels").items()},
        created=_text(document, "createTime"),
    )


def _slices_of(spec: Any, request: str) -> Iterator[str]:
    """Yield the names of a spec's slices; google.cloud.tpu.v2.MultisliceParams says of several."""
    several = field(spec, "multisliceParams", dict, {})
    if several:
        prefix = _text(several, "nodeIdPrefix") or _line(request)
        for number in range(field(several, "nodeCount", int, 0)):
            yield f"{prefix}-{number}"
    elif name := _text(spec, "nodeId"):
        yield name


def read_identity(index: int, attributes: Any) -> WorkerIdentity:
    """Return what a worker published; raise ValueError for what are no guest attributes."""
    items = {
        (_text(item, "namespace"), _text(item, "key")): _text(item, "value")
        for item in field(field(attributes, "queryValue", dict, {}), "items", list, [])
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


def node_fields(request: SliceRequest) -> dict[str, Any]:
    """Return the node that a create asks for, in the names of google-cloud-tpu."""
    bought = {} if request.provisioning == "on-demand" else {request.provisioning: True}
    # `tpu_v2.ServiceAccount`: no scope at all means access to all Cloud APIs. Said all the same.
    account = {"email": request.service_account, "scope": [*SCOPES]}
    return {
        "accelerator_type": request.accelerator_type,
        "runtime_version": request.runtime_version,
        # Python clients default to no external address where gcloud defaults to one: always set it.
        "network_config": {
            "network": request.network,
            "subnetwork": request.subnetwork,
            "enable_external_ips": request.external_addresses,
        },
        "scheduling_config": bought,
        "service_account": account if request.service_account else None,
        "labels": dict(request.labels),
        "tags": list(request.tags),
        "metadata": dict(request.metadata),
        "data_disks": _disk_fields(request.data_disks),
    }


def change_fields(change: SliceChange) -> dict[str, Any]:
    """Return the fields of a node that an update replaces, in the names of google-cloud-tpu."""
    parts = change.parts
    if "data_disks" in parts:
        parts["data_disks"] = _disk_fields(parts["data_disks"])
    return {name: list(part) if name == "tags" else part for name, part in parts.items()}


def queued_fields(request: QueueRequest, parent: str) -> dict[str, Any]:
    """Return the queued resource that a create asks for, in the names of google-cloud-tpu.

    How capacity is bought is said of the whole request, not of its nodes (API reference, REST
    resource queuedResources).
    """
    bought, node = request.slice.provisioning, node_fields(request.slice)
    node["scheduling_config"] = {}
    spec: dict[str, Any] = {"parent": parent, "node": node}
    if request.count == 1:
        spec["node_id"] = request.slice.name
    else:
        several = {"node_count": request.count, "node_id_prefix": request.slice.name}
        spec["multislice_params"] = several
    seconds = request.valid_seconds
    until = {} if seconds is None else {"valid_until_duration": {"seconds": int(seconds)}}
    return {
        "tpu": {"node_spec": [spec]},
        **({"spot": {}} if bought == "spot" else {}),
        **({"reservation_name": f"{parent}/reservations/-"} if bought == "reserved" else {}),
        **({"queueing_policy": until} if until else {}),
    }


def field(document: Any, name: str, kind: type[Kind], default: Kind) -> Kind:
    """Return a field, or the default where it is not given; raise ValueError for another type."""
    value = document.get(name) if isinstance(document, dict) else document
    if isinstance(document, dict) and value is None:
        return default
    if not isinstance(document, dict) or not isinstance(value, kind):
        raise ValueError(f"{name} is not of the type that the API gives it")
    return value


def _owner(path: str) -> str:
    """Return the project of `projects/P/global/networks/N`, "" for what is no such path."""
    match = re.fullmatch(r"(?:.*/)?projects/([^/]+)/global/networks/[^/]+", path)
    return _line(match[1]) if match else ""


def _line(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is not of the type that the API gives it")
    return one_line(value[:_LONGEST])


def _text(document: Any, name: str) -> str:
    return _line(field(document, name, str, ""))


def _last(document: Any, name: str) -> str:
    """Return the last part of a resource's name."""
    return _text(document, name).rpartition("/")[2]


def _texts(document: Any, name: str) -> dict[str, str]:
    found = field(document, name, dict, {})
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{name} is not of the type that the API gives it")
    return found


def _word(document: Any, name: str) -> str:
    """Return a word of an enumeration; the JSON form allows its number too."""
    value = field(document, name, object, "")
    word = str(value) if isinstance(value, int) else _line(value)
    return "" if word.endswith("_UNSPECIFIED") else word


def _worker(index: int, endpoint: Any) -> Worker:
    return Worker(
        index=index,
        internal_address=_text(endpoint, "ipAddress"),
        external_address=_text(field(endpoint, "accessConfig", dict, {}), "externalIp"),
    )


def _disk_fields(disks: Iterable[DataDisk]) -> list[dict[str, str]]:
    return [
        {"source_disk": disk.source, "mode": "READ_ONLY" if disk.read_only else "READ_WRITE"}
        for disk in disks
    ]


def _disk(attached: Any) -> DataDisk:
    return DataDisk(_text(attached, "sourceDisk"), _word(attached, "mode") == "READ_ONLY")
