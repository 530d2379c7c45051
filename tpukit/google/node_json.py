"""The JSON of the Cloud TPU API from and to our models.

The API grows: unknown fields are ignored, and unknown words of an enumeration are kept. A known
field of a wrong type is left empty and named in `unreadable`, so that you can still see and delete
the slice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tpukit.google.enumerations import DISK_MODE, INITIATOR, NODE_HEALTH, NODE_STATE, QUEUED_STATE
from tpukit.models import (
    QUEUE_ONLY,
    DataDisk,
    QueuedResource,
    QueueRequest,
    Slice,
    SliceChange,
    SliceRequest,
    Worker,
)
from tpukit.text import one_line

Json = Mapping[str, Any]
Kind = TypeVar("Kind")

#: The OAuth scopes of our tokens, and of a slice's service account.
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
#: The label of a queued resource, and of its slices, for a tier for which v2 has no field.
CAPACITY = "tpukit-capacity"
#: The label of flex-start slices with the seconds until Google deletes them.
MAX_RUN = "tpukit-max-run"
#: The value of `Slice.api` for this API.
API = "tpu"
#: Texts are cut to this number of characters.
_LONGEST = 2048
#: More slices than one queued resource can ask for.
_MOST_SLICES = 10_000
_BOUGHT = ("spot", "preemptible", "reserved")
#: `provisioningModel` of SchedulingConfig and QueuedResource, in v2alpha1's discovery document.
_MODELS = {"STANDARD": "on-demand", "RESERVATION_BOUND": "reserved"}
Read = TypeVar("Read", Slice, QueuedResource)


def read_slice(node: Any) -> Slice:
    """Return the slice of a node's JSON; raise ValueError if it has no full name.

    An unreadable field is left empty and named in `unreadable`.
    """
    return as_far_as_readable(node, _slice)


def read_queued(document: Any) -> QueuedResource:
    """Return the queued resource of a JSON object; raise ValueError if it has no full name.

    An unreadable field is left empty and named in `unreadable`.
    """
    return as_far_as_readable(document, _queued)


def as_far_as_readable(document: Any, read: Callable[[Any], Read]) -> Read:
    """Return what `read` makes of the readable fields; raise ValueError if it has no full name."""
    try:
        return read(document)
    except ValueError:
        name = {"name": document.get("name")} if isinstance(document, dict) else document
        read(name)
        wrong = {key for key in document if not _reads(read, {**name, key: document[key]})}
        rest = {key: value for key, value in document.items() if key not in wrong}
        return replace(read(rest), unreadable=tuple(sorted(map(one_line, wrong))))


def _reads(read: Callable[[Any], Read], document: Json) -> bool:
    try:
        read(document)
    except ValueError:
        return False
    return True


def _slice(node: Any) -> Slice:
    project, zone, name = _names(node)
    # A node has one network, or several if it has several interfaces; the first is the main one.
    networks = field(node, "networkConfigs", list, [])
    network = field(node, "networkConfig", dict, {}) or (networks[0] if networks else {})
    labels = {_line(key): _line(value) for key, value in _texts(node, "labels").items()}
    return Slice(
        name=name,
        project=project,
        zone=zone,
        api=API,
        accelerator_type=text_of(node, "acceleratorType"),
        runtime_version=text_of(node, "runtimeVersion"),
        state=_word(node, "state", NODE_STATE),
        id=text_of(node, "id"),
        health=_word(node, "health", NODE_HEALTH),
        health_description=text_of(node, "healthDescription"),
        topology=text_of(field(node, "acceleratorConfig", dict, {}), "topology"),
        network=_last(network, "network"),
        network_project=_owner(field(network, "network", str, "")),
        subnetwork=_last(network, "subnetwork"),
        workers=tuple(
            _worker(index, endpoint)
            for index, endpoint in enumerate(field(node, "networkEndpoints", list, []))
        ),
        labels=labels,
        tags=tuple(_line(tag) for tag in field(node, "tags", list, [])),
        metadata=_texts(node, "metadata"),
        provisioning=_labelled(labels) or _provisioning(field(node, "schedulingConfig", dict, {})),
        created=text_of(node, "createTime"),
        queued_resource=_last(node, "queuedResource"),
        service_account=text_of(field(node, "serviceAccount", dict, {}), "email"),
        external_addresses=field(network, "enableExternalIps", bool, False),
        data_disks=tuple(_disk(disk) for disk in field(node, "dataDisks", list, [])),
    )


def _queued(document: Any) -> QueuedResource:
    project, zone, name = _names(document)
    state = field(document, "state", dict, {})
    specs = field(field(document, "tpu", dict, {}), "nodeSpec", list, [])
    slices = tuple(slice_ for spec in specs for slice_ in _slices_of(spec, name))
    asked = field(specs[0], "node", dict, {}) if specs else {}
    node = _slice({**asked, "name": f"projects/{project}/locations/{zone}/nodes/{name}"})
    bought, held = _queued_provisioning(document, node.labels), _last(document, "reservationName")
    error = field(field(state, "failedData", dict, {}), "error", dict, {})
    return QueuedResource(
        name=name,
        project=project,
        zone=zone,
        state=_word(state, "state", QUEUED_STATE),
        initiator=_word(state, "stateInitiator", INITIATOR),
        error=text_of(error, "message"),
        error_code=field(error, "code", int, 0),
        slices=slices,
        accelerator_type=node.accelerator_type,
        provisioning=bought,
        labels=node.labels,
        created=text_of(document, "createTime"),
        network_project=node.network_project,
        node=replace(node, provisioning=bought, reservation="" if held == "-" else held),
        valid_seconds=_seconds(field(document, "queueingPolicy", dict, {}), "validUntilDuration"),
    )


def _names(document: Any) -> tuple[str, str, str]:
    """Return the project, the zone and the name of `projects/P/locations/Z/nodes/N`."""
    parts = field(document, "name", str, "").split("/")
    if len(parts) != 6:
        raise ValueError("a resource without its full name")
    return _line(parts[1]), _line(parts[3]), _line(parts[5])


def _labelled(labels: Mapping[str, str]) -> str:
    """Return the tier of `QUEUE_ONLY` in the labels, or ""."""
    tier = labels.get(CAPACITY, "")
    return tier if tier in QUEUE_ONLY else ""


def _provisioning(scheduling: Any) -> str:
    bought = (word for word in _BOUGHT if field(scheduling, word, bool, False))
    return next(bought, _model(scheduling))


def _queued_provisioning(document: Any, labels: Mapping[str, str]) -> str:
    """Return how a request buys capacity; for `QUEUE_ONLY`, v2 has only our label."""
    if document.get("spot") is not None:
        return "spot"
    if document.get("bestEffort") is not None or _labelled(labels):
        return _labelled(labels) or "best-effort"
    reserved = field(field(document, "guaranteed", dict, {}), "reserved", bool, False)
    return "reserved" if reserved or text_of(document, "reservationName") else _model(document)


def _model(document: Any) -> str:
    """Return the capacity of a `provisioningModel`: "flex-start" for FLEX_START."""
    model = _word(document, "provisioningModel", {}) or "STANDARD"
    return _MODELS.get(model, model.lower().replace("_", "-"))


def _seconds(document: Any, name: str) -> float | None:
    """Return the seconds of a duration such as `3600s`, or None without one."""
    text = text_of(document, name)
    return float(text.removesuffix("s")) if text else None


def _slices_of(spec: Any, request: str) -> Iterator[str]:
    """Yield the names of a spec's slices.

    v2 calls the parameters of several slices `multisliceParams`, v2alpha1 `multiNodeParams`.
    """
    several = field(spec, "multisliceParams", dict, {}) or field(spec, "multiNodeParams", dict, {})
    if several:
        prefix = text_of(several, "nodeIdPrefix") or request
        count = field(several, "nodeCount", int, 0)
        if count > _MOST_SLICES:  # a wrong number would fill the memory with names
            raise ValueError("a queued resource with too many slices")
        for number in range(count):
            yield f"{prefix}-{number}"
    elif name := text_of(spec, "nodeId"):
        yield name


def read_operation(answer: Any) -> str:
    """Return the name of an operation; raise ValueError if it has no full name."""
    name = field(answer, "name", str, "")
    if "/operations/" not in name:
        raise ValueError("an operation without its full name")
    return name


def node_fields(request: SliceRequest) -> Json:
    """Return the JSON of the node for a create."""
    bought = {} if request.provisioning == "on-demand" else {request.provisioning: True}
    # No scopes mean all scopes (API reference, REST resource nodes); we name them nevertheless.
    account = {"email": request.service_account, "scope": [*SCOPES]}
    return _given(
        acceleratorType=request.accelerator_type,
        runtimeVersion=request.runtime_version,
        networkConfig=_given(
            network=request.network,
            subnetwork=request.subnetwork,
            # The API's default is no external address, gcloud's is one; so always set it.
            enableExternalIps=request.external_addresses,
        ),
        schedulingConfig=bought,
        serviceAccount=account if request.service_account else {},
        labels=dict(request.labels),
        tags=list(request.tags),
        metadata=dict(request.metadata),
        dataDisks=_disk_fields(request.data_disks),
    )


def change_fields(change: SliceChange) -> Json:
    """Return the JSON of the fields that an update replaces, including the emptied ones."""
    parts = change.parts
    disks = parts.pop("data_disks", None)
    fields = {name: list(part) if name == "tags" else dict(part) for name, part in parts.items()}
    return fields if disks is None else {**fields, "dataDisks": _disk_fields(disks)}


def queued_fields(request: QueueRequest, parent: str) -> Json:
    """Return the JSON of a queued resource for a create.

    The queued resource says how capacity is bought, its nodes do not (API reference, REST resource
    queuedResources). Only v2alpha1 has the tiers of `QUEUE_ONLY`, and it has another name for
    several nodes.
    """
    name, count, bought = request.slice.name, request.count, request.slice.provisioning
    several = "multiNodeParams" if request.slice.queue_only else "multisliceParams"
    tier = {CAPACITY: bought} if bought in QUEUE_ONLY else {}
    labels = {**request.slice.labels, **tier}
    spec = _given(
        parent=parent,
        node=node_fields(replace(request.slice, provisioning="on-demand", labels=labels)),
        nodeId=name if count == 1 else "",
    )
    if count > 1:
        spec[several] = {"nodeCount": count, "nodeIdPrefix": name}
    seconds = request.valid_seconds
    until = {} if seconds is None else {"validUntilDuration": f"{int(seconds)}s"}
    whose = request.slice.reservation or "-"
    return {
        "tpu": {"nodeSpec": [spec]},
        **({"spot": {}} if bought == "spot" else {}),
        **({"bestEffort": {}} if bought == "best-effort" else {}),
        **(_flex_start(labels) if bought == "flex-start" else {}),
        **({"reservationName": f"{parent}/reservations/{whose}"} if bought == "reserved" else {}),
        **({"queueingPolicy": until} if until else {}),
    }


def _flex_start(labels: Mapping[str, str]) -> Json:
    """Return the fields of a flex-start request, as in v2alpha1's discovery document."""
    return {
        "provisioningModel": "FLEX_START",
        "runDuration": {"maxRunDuration": f"{labels[MAX_RUN]}s"},
    }


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value not in ("", {}, [])}


def field(document: Any, name: str, kind: type[Kind], default: Kind) -> Kind:
    """Return a field, or the default if it is missing; raise ValueError for another type."""
    value = document.get(name) if isinstance(document, dict) else document
    if isinstance(document, dict) and value is None:
        return default
    if not isinstance(document, dict) or not isinstance(value, kind):
        raise ValueError(f"{name} has another type than in the API")
    return value


def _owner(path: str) -> str:
    """Return the project of `projects/P/global/networks/N`, or "" for another path."""
    match = re.fullmatch(r"(?:.*/)?projects/([^/]+)/global/networks/[^/]+", path)
    return _line(match[1]) if match else ""


def last_part(value: object) -> str:
    """Return the last part of a resource's name; raise ValueError if it is not a text."""
    return _line(value).rpartition("/")[2]


def _line(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a value that is not a text")
    return one_line(value[:_LONGEST])


def text_of(document: Any, name: str) -> str:
    """Return a text of a document in one line; raise ValueError for another type."""
    return _line(field(document, name, str, ""))


def _last(document: Any, name: str) -> str:
    return last_part(text_of(document, name))


def _texts(document: Any, name: str) -> dict[str, str]:
    texts = field(document, name, dict, {})
    if not all(isinstance(value, str) for value in texts.values()):
        raise ValueError(f"{name} has another type than in the API")
    return texts


def _word(document: Any, name: str, words: Mapping[int, str]) -> str:
    """Return a word of an enumeration, which JSON may give by number. Unknown words are kept."""
    value = field(document, name, object, "")
    word = words.get(value, str(value)) if isinstance(value, int) else _line(value)
    return "" if word.endswith("_UNSPECIFIED") else word


def _worker(index: int, endpoint: Any) -> Worker:
    return Worker(
        index=index,
        internal_address=text_of(endpoint, "ipAddress"),
        external_address=text_of(field(endpoint, "accessConfig", dict, {}), "externalIp"),
    )


def _disk_fields(disks: Iterable[DataDisk]) -> list[dict[str, str]]:
    return [
        {"sourceDisk": disk.source, "mode": "READ_ONLY" if disk.read_only else "READ_WRITE"}
        for disk in disks
    ]


def _disk(attached: Any) -> DataDisk:
    return DataDisk(
        text_of(attached, "sourceDisk"), _word(attached, "mode", DISK_MODE) == "READ_ONLY"
    )
