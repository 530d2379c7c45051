"""What a client may say in a Node: checked and brought into the form in which it is answered."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Any

from tpukit.emulator.core.api_errors import ApiError, Json, field_violation, invalid
from tpukit.emulator.core.service_context import RESOURCE_ID, Call, ServiceContext, project_number
from tpukit.emulator.tpu_service.catalogue import Catalogue

#: Google Cloud documentation, "Requirements for labels": lower case, digits, _, -, 63 characters.
_LABEL_KEY = re.compile(r"[^\W\dA-Z_][\w-]{0,62}")
_LABEL_VALUE = re.compile(r"[\w-]{0,63}")

#: The service's own, though no discovery document calls it output only.
_OWN = ("health",)
#: The discovery document on `description`.
_LONGEST_DESCRIPTION = 512
#: Compute Engine's discovery document on a value of metadata, in bytes.
_LARGEST_VALUE = 262_144
#: Terraform's documentation of google_tpu_v2_vm: neither type nor config means v2-8.
_DEFAULT_TYPE = "v2-8"


def parse_node(context: ServiceContext, catalogue: Catalogue, call: Call) -> Json:
    """Return the node that a create asks for, with the service's defaults filled in."""
    given = parse_fields(call)
    kind = _accelerator(context, catalogue, call.path["zone"], given)
    runtime = given.get("runtimeVersion", "")
    if runtime not in catalogue.runtime_versions:
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
    """Return the fields of the body that a client may set."""
    given = {k: v for k, v in call.body.items() if v is not None and k not in _OWN}
    _check_labels(given.get("labels", {}))
    _check_tags(given.get("tags", []))
    _check_sizes(given)
    return given


def _accelerator(context: ServiceContext, catalogue: Catalogue, zone: str, given: Json) -> Any:
    name, config = given.get("acceleratorType", ""), given.get("acceleratorConfig")
    if name and config:
        raise context.bad_request("only one of accelerator_type and accelerator_config may be set")
    if config:
        api_type, topology = config.get("type", ""), config.get("topology", "")
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
    config = given.get("networkConfig") or (several[0] if several else {})
    network = full_network(call.project, config.get("network") or "default")
    if not context.has_network(call.project, network):
        raise context.bad_request(f"The resource '{network}' was not found")
    region = call.path["zone"].rsplit("-", 1)[0]
    subnetwork = (config.get("subnetwork") or "default").rsplit("/", 1)[-1]
    return {
        **config,
        "network": network,
        "subnetwork": f"projects/{network.split('/')[1]}/regions/{region}/subnetworks/{subnetwork}",
        "enableExternalIps": config.get("enableExternalIps", False),
    }


def full_network(project: str, text: str) -> str:
    """Return `projects/P/global/networks/N` for a name, a partial path or a whole link."""
    found = re.search(r"projects/([^/]+)/global/networks/([^/]+)$", text)
    if found:
        return f"projects/{found[1]}/global/networks/{found[2]}"
    return f"projects/{project}/global/networks/{text.rsplit('/', 1)[-1]}"


def _check_sizes(given: Json) -> None:
    if len(given.get("description", "")) > _LONGEST_DESCRIPTION:
        raise _bad("description", f"is longer than {_LONGEST_DESCRIPTION} characters")
    for key, value in given.get("metadata", {}).items():
        if len(value.encode()) > _LARGEST_VALUE:
            raise _bad(f"metadata[{key}]", f"is larger than {_LARGEST_VALUE} bytes")
    try:
        ip_network(given.get("cidrBlock") or "0.0.0.0/0", strict=False)
    except ValueError as error:
        raise _bad("cidr_block", "is no CIDR block") from error


def _bad(name: str, why: str) -> ApiError:
    text = f"Invalid value at 'node.{name}': it {why}."
    return invalid(text, [field_violation(f"node.{name}", text)])


def _check_labels(labels: Json) -> None:
    for key, value in labels.items():
        bad_case = key != key.lower() or value != value.lower()
        if bad_case or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            text = f"Invalid label: {key!r}: {value!r}"
            raise invalid(text, [field_violation(f"node.labels[{key}]", text)])
    if len(labels) > 64:
        raise invalid("A resource can have at most 64 labels.")


def _check_tags(tags: list[str]) -> None:
    for tag in tags:
        if not RESOURCE_ID.fullmatch(tag):
            text = f"Invalid network tag: {tag!r}"
            raise invalid(text, [field_violation("node.tags", text)])
