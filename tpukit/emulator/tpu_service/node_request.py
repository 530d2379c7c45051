"""What a client may say in a Node: checked and brought into the form in which it is answered."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from tpukit.emulator.core.api_errors import (
    Json,
    field_violation,
    invalid,
    unknown_field,
    wrong_value,
)
from tpukit.emulator.core.service_context import RESOURCE_ID, Call, ServiceContext, project_number
from tpukit.emulator.tpu_service.catalogue import RUNTIME_VERSIONS, TYPE_NUMBERS, Catalogue

#: Google Cloud documentation, "Requirements for labels": lower case, digits, _, -, 63 characters.
_LABEL_KEY = re.compile(r"[^\W\dA-Z_][\w-]{0,62}")
_LABEL_VALUE = re.compile(r"[\w-]{0,63}")

#: Fields of google.cloud.tpu.v2.Node that a client may set, with their JSON types.
_SETTABLE: dict[str, type] = {
    "acceleratorConfig": dict,
    "acceleratorType": str,
    "cidrBlock": str,
    "dataDisks": list,
    "description": str,
    "labels": dict,
    "metadata": dict,
    "networkConfig": dict,
    "networkConfigs": list,
    "runtimeVersion": str,
    "schedulingConfig": dict,
    "serviceAccount": dict,
    "shieldedInstanceConfig": dict,
    "tags": list,
}
_OUTPUT_ONLY = frozenset(
    "apiVersion createTime health healthDescription id multisliceNode name networkEndpoints"  # noqa: SIM905
    " queuedResource state symptoms upcomingMaintenance".split()
)
_MAPS = ("labels", "metadata")
_LISTS = ("dataDisks", "networkConfigs")
#: `AttachedDisk.DiskMode` of the API.
_DISK_MODES = {1: "READ_WRITE", 2: "READ_ONLY"}
#: Terraform's documentation of google_tpu_v2_vm: neither type nor config means v2-8.
_DEFAULT_TYPE = "v2-8"


def parse_node(context: ServiceContext, catalogue: Catalogue, call: Call) -> Json:
    """Return the node that a create asks for, with the service's defaults filled in."""
    given = parse_fields(call)
    kind = _accelerator(context, catalogue, call.path["zone"], given)
    runtime = given.get("runtimeVersion", "")
    if runtime not in RUNTIME_VERSIONS:
        raise context.bad_request(f'Runtime version "{runtime}" was not found')
    account = given.get("serviceAccount") or {}
    return {
        **given,
        "acceleratorType": kind.name,
        "acceleratorConfig": {"type": kind.facts.api_type, "topology": kind.topology},
        "networkConfig": _network(context, call, given),
        "cidrBlock": given.get("cidrBlock") or "10.128.0.0/20",
        "schedulingConfig": given.get("schedulingConfig") or {},
        "shieldedInstanceConfig": given.get("shieldedInstanceConfig") or {},
        "serviceAccount": {
            "email": account.get("email")
            or f"{project_number(call.project)}-compute@developer.gserviceaccount.com",
            "scope": account.get("scope") or ["https://www.googleapis.com/auth/cloud-platform"],
        },
    }


def parse_fields(call: Call) -> Json:
    """Return the fields of the body that a client may set, with their types checked."""
    found = typed_fields(call, call.body, "node", _SETTABLE, _OUTPUT_ONLY)
    given = {name: _plain(name, value) for name, value in found.items()}
    _check_labels(given.get("labels", {}))
    _check_tags(given.get("tags", []))
    return given


def typed_fields(
    call: Call, body: Json, message: str, known: Mapping[str, type], ignored: Collection[str]
) -> Json:
    """Return the known fields of a message as JSON names them.

    Raises `ApiError` for a value of another type, and in v2 for a field neither known nor ignored.
    """
    named = {camel(name): value for name, value in body.items()}
    unknown = [name for name in named if name not in known and name not in ignored]
    # gcloud alpha sends fields that its own v2alpha1 service knows and other clients do not.
    if unknown and call.version == "v2":
        raise unknown_field(message, unknown[0])
    given = {name: value for name, value in named.items() if name in known and value is not None}
    for name, value in given.items():
        if not isinstance(value, known[name]):
            raise wrong_value(f"{message}.{name}", value)
    return given


def camel(name: str) -> str:
    """Return a field name as JSON has it; protobuf's parsers accept both spellings."""
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest)


def _plain(name: str, value: Any) -> Any:
    if name in _MAPS:
        for key, entry in value.items():
            if not isinstance(entry, str):
                raise wrong_value(f"node.{name}.{key}", entry)
        return dict(value)
    if isinstance(value, dict):
        return {camel(key): entry for key, entry in value.items() if entry is not None}
    if name in _LISTS and not all(isinstance(entry, dict) for entry in value):
        raise wrong_value(f"node.{name}", value)
    return [_disk(entry) for entry in value] if name == "dataDisks" else value


def _disk(given: Json) -> Json:
    """Return a disk as it is answered: the mode, which clients may give by its number, in words."""
    disk = {camel(key): entry for key, entry in given.items()}
    mode = disk.get("mode")
    return {**disk, "mode": _DISK_MODES.get(mode, mode)} if mode else disk


def _accelerator(context: ServiceContext, catalogue: Catalogue, zone: str, given: Json) -> Any:
    name, config = given.get("acceleratorType", ""), given.get("acceleratorConfig")
    if name and config:
        raise context.bad_request("only one of accelerator_type and accelerator_config may be set")
    if config:
        number = config.get("type")
        api_type = TYPE_NUMBERS.get(number, str(number)) if isinstance(number, int) else str(number)
        topology = str(config.get("topology", ""))
        name = f"{api_type} {topology}"
        found = catalogue.by_topology(zone, api_type, topology)
    else:
        name = name or _DEFAULT_TYPE
        found = catalogue.by_name(zone, name)
    if found is None:
        # Both halves of the text: skypilot-org/skypilot#3840 and a report of 2025.
        raise context.bad_request(
            "The requested accelerator configuration for accelerator type, "
            f'"{name}", could not be found in the zonal accelerator configurations for "{zone}".; '
            f"the accelerator {name} was not found in zone {zone}"
        )
    return found


def _network(context: ServiceContext, call: Call, given: Json) -> Json:
    several = given.get("networkConfigs")
    if several and given.get("networkConfig"):
        raise context.bad_request("only one of network_config and network_configs may be set")
    config = given.get("networkConfig") or (dict(several[0]) if several else {})
    network = full_network(call.project, str(config.get("network") or "default"))
    if not context.has_network(call.project, network):
        raise context.bad_request(f"The resource '{network}' was not found")
    region = call.path["zone"].rsplit("-", 1)[0]
    subnetwork = str(config.get("subnetwork") or "default").rsplit("/", 1)[-1]
    return {
        **config,
        "network": network,
        "subnetwork": f"projects/{network.split('/')[1]}/regions/{region}/subnetworks/{subnetwork}",
        "enableExternalIps": bool(config.get("enableExternalIps", False)),
    }


def full_network(project: str, text: str) -> str:
    """Return `projects/P/global/networks/N` for a name, a partial path or a whole link."""
    found = re.search(r"projects/([^/]+)/global/networks/([^/]+)$", text)
    if found:
        return f"projects/{found[1]}/global/networks/{found[2]}"
    return f"projects/{project}/global/networks/{text.rsplit('/', 1)[-1]}"


def _check_labels(labels: Json) -> None:
    for key, value in labels.items():
        bad_case = key != key.lower() or value != value.lower()
        if bad_case or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            text = f"Invalid label: {key!r}: {value!r}"
            raise invalid(text, [field_violation(f"node.labels[{key}]", text)])
    if len(labels) > 64:
        raise invalid("A resource can have at most 64 labels.")


def _check_tags(tags: list[Any]) -> None:
    for tag in tags:
        if not isinstance(tag, str) or not RESOURCE_ID.fullmatch(tag):
            text = f"Invalid network tag: {tag!r}"
            raise invalid(text, [field_violation("node.tags", text)])
