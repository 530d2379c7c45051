"""The JSON of Compute Engine's instances from and to our models.

An instance with TPUs is a slice of one worker. Source: the discovery document compute.v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from tpukit.errors import BadInput, Fix
from tpukit.google.compute_machines import (
    IMAGE_PROJECT,
    HostMachine,
    has_tpu,
    shape_of,
    type_of,
)
from tpukit.google.node_json import MAX_RUN, SCOPES, as_far_as_readable, field, last_part
from tpukit.models import DataDisk, Slice, SliceRequest, Worker
from tpukit.text import one_line

Json = Mapping[str, Any]

#: The value of `Slice.api` for this API.
API = "compute"
#: The label with the image family, because an instance does not name its image.
IMAGE = "tpukit-image"
#: Items that Compute Engine itself writes into an instance's metadata. A worker learns from them
#: what it is (a console export of a ct6e-standard-1t, 2026-08-26).
GOOGLE_ITEMS = ("accelerator-type", "agent-worker-number", "tpu-env", "worker-network-endpoints")
#: Items that a group writes into the metadata of its instances.
GROUP_ITEMS = ("created-by", "instance-template")
#: The image's 10 GB, the API's default, are too small for any framework.
BOOT_DISK_GB = 200
#: Seconds for which a flex-start request waits for capacity: the API's limit for one machine.
_VALID_SECONDS = 7200
_STATES = {
    "RUNNING": "READY",
    "PENDING": "CREATING",
    "PROVISIONING": "CREATING",
    "STAGING": "CREATING",
    "TERMINATED": "STOPPED",
    "PENDING_STOP": "STOPPING",
    "SUSPENDED": "STOPPED",
    "SUSPENDING": "STOPPING",
    "DEPROVISIONING": "DELETING",
}
_BOUGHT = {
    "STANDARD": "on-demand",
    "SPOT": "spot",
    "FLEX_START": "flex-start",
    "RESERVATION_BOUND": "reserved",
}
_MODELS = {bought: model for model, bought in _BOUGHT.items()}


def is_slice(instance: Any) -> bool:
    """Return True if an instance has TPUs, as far as its machine type is readable."""
    machine = instance.get("machineType") if isinstance(instance, dict) else None
    return isinstance(machine, str) and has_tpu(last_part(machine))


def read_instance(instance: Any, project: str) -> Slice:
    """Return the slice of an instance; raise ValueError if it has no name.

    An unreadable field is left empty and named in `unreadable`.
    """
    return as_far_as_readable(instance, partial(_slice, project=project))


def _slice(instance: Any, project: str) -> Slice:
    items = read_items(instance)
    scheduling = field(instance, "scheduling", dict, {})
    interfaces = field(instance, "networkInterfaces", list, [])
    interface = interfaces[0] if interfaces else {}
    access = field(interface, "accessConfigs", list, [])
    disks = field(instance, "disks", list, [])
    accounts = field(instance, "serviceAccounts", list, [])
    labels = {one_line(key): one_line(value) for key, value in _labels(instance).items()}
    network = _text(interface, "network")
    owner = network.partition("/projects/")[2].partition("/")[0] or (
        network.split("/")[1] if network.startswith("projects/") else ""
    )
    address = _text(interface, "networkIP")
    worker = Worker(0, address, _text(access[0], "natIP") if access else "")
    machine = last_part(field(instance, "machineType", str, ""))
    status = _text(instance, "status")
    return Slice(
        name=_name(instance),
        project=project,
        zone=last_part(field(instance, "zone", str, "")),
        api=API,
        accelerator_type=type_of(machine) or one_line(items.get("accelerator-type", "")) or machine,
        runtime_version=labels.get(IMAGE, ""),
        state=_STATES.get(status, status),
        id=_text(instance, "id"),
        network=last_part(network),
        network_project="" if owner == project else owner,
        subnetwork=last_part(_text(interface, "subnetwork")),
        workers=(worker,) if address else (),
        labels=labels,
        tags=tuple(map(one_line, field(_tags(instance), "items", list, []))),
        metadata=items,
        provisioning=_provisioning(scheduling),
        reservation=_reservation(instance),
        created=utc(_text(instance, "creationTimestamp")),
        service_account=_text(accounts[0], "email") if accounts else "",
        external_addresses=bool(access),
        data_disks=tuple(_disk(disk) for disk in disks if not field(disk, "boot", bool, False)),
    )


def ended_by_google(slice_: Slice) -> Slice:
    """Return a stopped slice as PREEMPTED."""
    return replace(slice_, state="PREEMPTED")


def read_items(instance: Any) -> dict[str, str]:
    """Return the metadata of an instance by key."""
    items = field(field(instance, "metadata", dict, {}), "items", list, [])
    return {field(item, "key", str, ""): field(item, "value", str, "") for item in items}


def utc(time: str) -> str:
    """Return a time of the API, which may have any offset, in UTC; "" for ""."""
    if not time:
        return ""
    moment = datetime.fromisoformat(time).astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


def insert_fields(request: SliceRequest) -> Json:
    """Return the JSON of an instance for a create.

    Raises `BadInput` for types that are not those of one machine.
    """
    shape, zone = shape_of(request.accelerator_type), f"zones/{request.zone}"
    if shape.hosts > 1:
        raise BadInput(f"{request.accelerator_type} is not one machine")
    valid = {"requestValidForDuration": {"seconds": str(_VALID_SECONDS)}}
    return {
        "name": request.name,
        **properties(request, shape.machine, f"{zone}/diskTypes/"),
        "machineType": f"{zone}/machineTypes/{shape.machine.name}",
        **({"params": valid} if request.provisioning == "flex-start" else {}),
    }


def properties(request: SliceRequest, machine: HostMachine, disk_types: str = "") -> Json:
    """Return the fields that an instance shares with an instance template.

    `disk_types` is the start of the names of disk types: a template takes bare names.
    """
    metadata = {
        "enable-guest-attributes": "TRUE",  # the workers' host keys
        "enable-oslogin": "FALSE",
        "block-project-ssh-keys": "TRUE",
        **request.metadata,
    }
    interface: dict[str, Any] = {"network": _network(request.network), "nicType": "GVNIC"}
    if request.subnetwork:
        interface["subnetwork"] = _subnetwork(request)
    if request.external_addresses:
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "external-nat"}]
    boot = {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": _image(request.runtime_version),
            "diskType": f"{disk_types}{machine.disk_type}",
            "diskSizeGb": str(BOOT_DISK_GB),
        },
    }
    body: dict[str, Any] = {
        "machineType": machine.name,
        "labels": {**request.labels, IMAGE: request.runtime_version.rpartition("/")[2]},
        "tags": {"items": list(request.tags)},
        "disks": [boot, *map(_disk_fields, request.data_disks)],
        "networkInterfaces": [interface],
        "shieldedInstanceConfig": {"enableSecureBoot": False},
        "serviceAccounts": [{"email": request.service_account or "default", "scopes": [*SCOPES]}],
        "metadata": {"items": item_fields(metadata)},
        **_capacity(request),
    }
    if machine.threads_per_core:
        body["advancedMachineFeatures"] = {"threadsPerCore": machine.threads_per_core}
    return body


def request_id(request: SliceRequest, created: str) -> str:
    """Return the request id of a create: the same if it is repeated after a lost answer.

    Google ignores a second request with the same id, even after a stockout. A new attempt has
    another `created`, the value of the label with its time.
    """
    nonce = request.labels.get("tpukit-nonce", "")
    place = f"projects/{request.project}/zones/{request.zone}/instances/{request.name}"
    return str(uuid5(NAMESPACE_URL, f"{place}#{nonce}#{created}"))


def item_fields(metadata: Mapping[str, str]) -> list[Json]:
    """Return metadata as the API takes it."""
    return [{"key": key, "value": value} for key, value in metadata.items()]


def kept_items(instance: Any, wanted: Mapping[str, str]) -> Mapping[str, str]:
    """Return the wanted metadata with the items that Compute Engine itself has written."""
    has = read_items(instance)
    return {**wanted, **{key: has[key] for key in (*GOOGLE_ITEMS, *GROUP_ITEMS) if key in has}}


def _capacity(request: SliceRequest) -> Json:
    """Return the fields that say how capacity is bought."""
    scheduling: dict[str, Any] = {
        "provisioningModel": _MODELS[request.provisioning],
        "onHostMaintenance": "TERMINATE",  # TPUs cannot migrate
        "automaticRestart": request.provisioning in ("on-demand", "reserved"),
    }
    none = {"reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}
    if request.provisioning == "spot":
        scheduling["instanceTerminationAction"] = "STOP"
        return {"scheduling": scheduling, **none}
    if request.provisioning == "flex-start":
        scheduling["instanceTerminationAction"] = "DELETE"
        scheduling["maxRunDuration"] = {"seconds": request.labels[MAX_RUN]}
        return {"scheduling": scheduling, **none}
    if request.provisioning == "reserved":
        scheduling["instanceTerminationAction"] = "DELETE"
        affinity = {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [request.reservation],
        }
        return {"scheduling": scheduling, "reservationAffinity": affinity}
    return {"scheduling": scheduling}


def check_capacity(provisioning: str, reservation: str) -> None:
    """Raise `BadInput` if Compute Engine has no such capacity, or needs a reservation's name."""
    if provisioning == "reserved" and not reservation:
        what = "Compute Engine needs the name of a reservation"
        raise BadInput(what, fix=Fix(note="--reservation NAME; or --api tpu"))
    if provisioning not in _MODELS:
        what = f"Compute Engine has no {provisioning} capacity for TPUs"
        fix = Fix(note="leave it out, or use --spot or --flex-start; or --api tpu")
        raise BadInput(what, fix=fix)


def _reservation(instance: Any) -> str:
    affinity = field(instance, "reservationAffinity", dict, {})
    names = field(affinity, "values", list, [])
    return last_part(field({"name": names[0]}, "name", str, "")) if names else ""


def _provisioning(scheduling: Any) -> str:
    model = _text(scheduling, "provisioningModel")
    if not model and field(scheduling, "preemptible", bool, False):
        return "preemptible"
    return _BOUGHT.get(model or "STANDARD", model.lower().replace("_", "-"))


def _image(family: str) -> str:
    whole = f"projects/{IMAGE_PROJECT}/global/images/family/{family}"
    return family if "/" in family else whole


def _network(network: str) -> str:
    return network if "/" in network else f"global/networks/{network}"


def _subnetwork(request: SliceRequest) -> str:
    region = request.zone.rpartition("-")[0]
    whole = f"regions/{region}/subnetworks/{request.subnetwork}"
    return request.subnetwork if "/" in request.subnetwork else whole


def _disk_fields(disk: DataDisk) -> Json:
    mode = "READ_ONLY" if disk.read_only else "READ_WRITE"
    return {"source": disk.source, "mode": mode, "autoDelete": False}


def _disk(disk: Any) -> DataDisk:
    path = _text(disk, "source")
    source = path[path.index("projects/") :] if "projects/" in path else path
    return DataDisk(source, _text(disk, "mode") == "READ_ONLY")


def _name(instance: Any) -> str:
    name = _text(instance, "name")
    if not name:
        raise ValueError("an instance without a name")
    return name


def _labels(instance: Any) -> dict[str, str]:
    labels = field(instance, "labels", dict, {})
    if not all(isinstance(value, str) for value in labels.values()):
        raise ValueError("labels has another type than in the API")
    return labels


def _tags(instance: Any) -> Any:
    return field(instance, "tags", dict, {})


def _text(document: Any, name: str) -> str:
    return one_line(field(document, name, str, "")[:2048])
