"""The Instance in a client's request, checked and converted to the form that is recorded."""

from __future__ import annotations

from tpukit.accelerators import region_of
from tpukit.emulator.compute_service.compute_operations import bad, check_name
from tpukit.emulator.compute_service.machine_types import (
    IMAGE_GB,
    REFUSED,
    MachineType,
    MachineTypes,
)
from tpukit.emulator.compute_service.projects import checked_items
from tpukit.emulator.core.api_errors import ApiError, Json, invalid
from tpukit.emulator.core.service_context import Call, ServiceContext, default_account
from tpukit.emulator.tpu_service.node_fields import check_labels, check_tags
from tpukit.emulator.tpu_service.node_network import full_network, full_subnetwork

#: Seconds: Compute Engine documentation on Flex-start VMs.
_SHORTEST_RUN, _LONGEST_RUN, _LONGEST_WAIT = 600, 7 * 86_400, 7200
_KEPT = ("description", "labels", "reservationAffinity", "params", "shieldedInstanceConfig")


def parse_instance(
    context: ServiceContext, machines: MachineTypes, call: Call
) -> tuple[Json, MachineType]:
    """Return the instance that an insert asks for, with full names, and its machine type.

    Raises `ApiError` for a field that Compute Engine refuses.
    """
    body, zone = call.body, call.path["zone"]
    name = body.get("name", "")
    check_name(name)
    machine = _machine(machines, zone, body.get("machineType", ""))
    check_labels(body.get("labels") or {})
    tags = (body.get("tags") or {}).get("items") or []
    check_tags(tags)
    account = (body.get("serviceAccounts") or [{}])[0]
    email = account.get("email", "default")
    email = default_account(call.project) if email == "default" else email
    place = f"projects/{call.project}/zones/{zone}"
    instance = {
        **{key: body[key] for key in _KEPT if key in body},
        "name": name,
        "zone": place,
        "machineType": f"{place}/machineTypes/{machine.name}",
        "metadata": checked_items(body.get("metadata") or {}),
        "tags": tags,
        "scheduling": _scheduling(context, call),
        "networkInterfaces": [_interface(context, call)],
        "disks": _disks(context, machines, call, machine),
    }
    if body.get("serviceAccounts"):
        instance["serviceAccounts"] = [{**account, "email": email}]
    return instance, machine


def _machine(machines: MachineTypes, zone: str, link: str) -> MachineType:
    name = link.rsplit("/", 1)[-1]
    if name in REFUSED:
        # data/recorded/texts.yaml, compute-user-agent: two users' reports.
        text = f"This user agent is not allowed to use the machine type [{name}]."
        raise ApiError("PERMISSION_DENIED", text)
    machine = machines.in_zone(name, zone)
    if machine is None:
        why = f"Machine type with name '{name}' does not exist in zone '{zone}'."
        raise bad("machineType", link, why)
    return machine


def _scheduling(context: ServiceContext, call: Call) -> Json:
    """Return a Scheduling with its model, after a check of its combinations."""
    given = dict(call.body.get("scheduling") or {})
    spot = given.get("preemptible") is True
    model = given.get("provisioningModel") or ("SPOT" if spot else "STANDARD")
    given = {"automaticRestart": model == "STANDARD", **given, "provisioningModel": model}
    given["preemptible"] = spot or model == "SPOT"
    if given["preemptible"]:
        given.setdefault("onHostMaintenance", "TERMINATE")
        given.setdefault("instanceTerminationAction", "STOP")
    if given.get("onHostMaintenance") != "TERMINATE":
        # Compute Engine's words for GPUs, which cannot migrate either.
        why = "Instances with guest accelerators do not support live migration."
        raise bad("scheduling.onHostMaintenance", given.get("onHostMaintenance", ""), why)
    affinity = call.body.get("reservationAffinity") or {}
    if model == "FLEX_START":
        _check_flex_start(call, given)
    if model == "RESERVATION_BOUND" or affinity.get("values"):
        _check_reservation(context, call, affinity)
    return given


def _check_flex_start(call: Call, scheduling: Json) -> None:
    seconds = int((scheduling.get("maxRunDuration") or {}).get("seconds", 0))
    if not _SHORTEST_RUN <= seconds <= _LONGEST_RUN:
        why = f"FLEX_START needs a duration from {_SHORTEST_RUN} to {_LONGEST_RUN} seconds."
        raise bad("scheduling.maxRunDuration", seconds, why)
    action = scheduling.get("instanceTerminationAction", "")
    if action != "DELETE":
        raise bad("scheduling.instanceTerminationAction", action, "FLEX_START needs DELETE.")
    if valid_seconds(call) > _LONGEST_WAIT:
        why = f"Must be at most {_LONGEST_WAIT} seconds."
        raise bad("params.requestValidForDuration", valid_seconds(call), why)


def valid_seconds(call: Call) -> int:
    """Return how long a flex-start request waits for capacity at most, in seconds."""
    return int(
        ((call.body.get("params") or {}).get("requestValidForDuration") or {}).get("seconds", 0)
    )


def _check_reservation(context: ServiceContext, call: Call, affinity: Json) -> None:
    """Raise `ApiError` if a named reservation is none of the emulator's catalogue."""
    names = affinity.get("values") or []
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION" or not names:
        why = "RESERVATION_BOUND needs a SPECIFIC_RESERVATION with its name."
        raise bad("reservationAffinity", affinity.get("consumeReservationType", ""), why)
    for name in names:
        full = f"{call.parent}/reservations/{name.rsplit('/', 1)[-1]}"
        if full not in context.state.reservations:
            raise invalid(f"Specified reservations [{name}] do not exist.")


def _interface(context: ServiceContext, call: Call) -> Json:
    given = (call.body.get("networkInterfaces") or [{}])[0]
    field, missing = "networkInterfaces[0]", "The referenced {} resource cannot be found."
    text = given.get("subnetwork") or None
    network = full_network(context, call.project, given.get("network"))
    if text and not given.get("network"):
        subnetwork = full_subnetwork(context, call, network, text)
        network = context.network_of(subnetwork) or network
    if not context.has_network(call.project, network):
        raise bad(f"{field}.network", network, missing.format("network"))
    subnetwork = full_subnetwork(context, call, network, text)
    right = subnetwork.split("/")[3] == region_of(call.path["zone"])
    if not right or context.network_of(subnetwork) != network:
        raise bad(f"{field}.subnetwork", subnetwork, missing.format("subnetwork"))
    external = [
        {"kind": "compute#accessConfig", "name": "external-nat", **config}
        for config in given.get("accessConfigs") or []
    ]
    kept = {key: given[key] for key in ("nicType", "stackType") if key in given}
    return {**kept, "network": network, "subnetwork": subnetwork, "accessConfigs": external}


def _disks(
    context: ServiceContext, machines: MachineTypes, call: Call, machine: MachineType
) -> list[Json]:
    given = call.body.get("disks") or []
    if sum(disk.get("boot") is True for disk in given) != 1:
        raise bad("disks", "", "No disks are specified.")
    place = f"projects/{call.project}/zones/{call.path['zone']}"
    disks: list[Json] = []
    for number, disk in enumerate(given):
        shown = {
            "kind": "compute#attachedDisk",
            "index": number,
            "type": "PERSISTENT",
            "mode": disk.get("mode", "READ_WRITE"),
            "boot": disk.get("boot", False),
            "autoDelete": disk.get("autoDelete", False),
            "deviceName": disk.get("deviceName") or f"persistent-disk-{number}",
        }
        if source := disk.get("source"):
            full = source[source.find("projects/") :] if "projects/" in source else source
            if full not in context.state.disks:
                raise bad(f"disks[{number}].source", source, "The disk cannot be found.")
            size = context.state.disks[full]["sizeGb"]
            disks.append({**shown, "source": full, "diskSizeGb": size})
            continue
        wanted = disk.get("initializeParams") or {}
        size = int(wanted.get("diskSizeGb", IMAGE_GB))
        family = machines.family_of(wanted.get("sourceImage", ""), call.project)
        if size < IMAGE_GB:
            why = f"Requested disk size cannot be smaller than the image size ({IMAGE_GB} GB)"
            raise bad(f"disks[{number}].initializeParams.diskSizeGb", size, why)
        kind = wanted.get("diskType", machine.boot_disk).rsplit("/", 1)[-1]
        if kind.partition("-")[0] != machine.boot_disk.partition("-")[0]:
            # The form of the sentence: DataBiosphere/dsub#301.
            pair = f"[{kind}, {machine.name}]"
            raise invalid(f"{pair} features are not compatible for creating instance.")
        name = wanted.get("diskName") or call.body["name"]
        new = {"source": f"{place}/disks/{name}", "diskSizeGb": str(size)}
        disks.append({**shown, **new, "made": {"type": f"{place}/diskTypes/{kind}"}})
        if disk.get("boot"):
            disks[-1]["made"]["family"] = family
    return disks
