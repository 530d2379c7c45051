"""The Node in a client's request, checked and converted to the form of an answer."""

from __future__ import annotations

from typing import Any

from tpukit.emulator.core.api_errors import Json
from tpukit.emulator.core.service_context import Call, ServiceContext, default_account
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.tpu_service.node_fields import (
    bad,
    check_account,
    check_fields,
    check_scheduling,
)
from tpukit.emulator.tpu_service.node_network import parse_network

#: Only the service sets this, though no discovery document calls it output-only.
_OWN = ("health",)
#: Recorded: tests/recorded/exchanges/tpu-node/03-get.
_SCOPES = tuple(
    f"https://www.googleapis.com/auth/{name}"
    for name in (
        *("devstorage.read_write", "logging.write", "service.management", "servicecontrol"),
        *("cloud-platform", "pubsub"),
    )
)
#: Terraform's documentation of google_tpu_v2_vm: neither type nor config means v2-8.
_DEFAULT_TYPE = "v2-8"


def parse_node(context: ServiceContext, catalogue: Catalogue, call: Call) -> Json:
    """Return the node that a create asks for, with the service's defaults."""
    given = parse_fields(call)
    kind = _accelerator(context, catalogue, call.path["zone"], given)
    runtime = given.get("runtimeVersion", "")
    if runtime not in catalogue.runtime_versions:
        raise context.bad_request(f'Runtime version "{runtime}" was not found')
    # Cloud TPU documentation, "Attach durable block storage to a TPU VM".
    writable = [disk for disk in given.get("dataDisks", ()) if disk.get("mode") != "READ_ONLY"]
    if kind.workers > 1 and writable:
        raise bad("node.data_disks[0].mode", "must be READ_ONLY for a slice of several workers")
    account = given.get("serviceAccount") or {}
    check_account(account)
    scheduling = given.get("schedulingConfig") or {}
    check_scheduling(context, scheduling)
    return {
        **given,
        "acceleratorType": kind.name,
        "acceleratorConfig": {"type": kind.facts.api_type, "topology": kind.topology},
        **_networks(context, call, given),
        "cidrBlock": given.get("cidrBlock") or "10.128.0.0/20",
        "schedulingConfig": scheduling,
        "shieldedInstanceConfig": given.get("shieldedInstanceConfig") or {},
        "serviceAccount": {
            "email": account.get("email") or default_account(call.project),
            "scope": account.get("scope") or list(_SCOPES),
        },
    }


def parse_fields(call: Call) -> Json:
    """Return the fields of the body that a client may set."""
    given = {k: v for k, v in call.body.items() if v is not None and k not in _OWN}
    check_fields(call, given)
    return given


def _accelerator(context: ServiceContext, catalogue: Catalogue, zone: str, given: Json) -> Any:
    name, config = given.get("acceleratorType", ""), given.get("acceleratorConfig")
    if name and config:
        raise context.bad_request("only one of accelerator_type and accelerator_config may be set")
    if config:
        api_type, topology = config.get("type", ""), config.get("topology", "")
        name = f"{api_type} {topology}"
        kind = catalogue.by_topology(zone, api_type, topology)
    else:
        name = name or _DEFAULT_TYPE
        kind = catalogue.by_name(zone, name)
    if kind is None:
        # Sources of the two halves: skypilot-org/skypilot#3840 and a report of 2025.
        raise context.bad_request(
            "The requested accelerator configuration for accelerator type, "
            f'"{name}", could not be found in the zonal accelerator configurations for "{zone}".; '
            f"the accelerator {name} was not found in zone {zone}"
        )
    return kind


def _networks(context: ServiceContext, call: Call, given: Json) -> Json:
    """Return the node's `networkConfig`, and `networkConfigs` if the request names several."""
    several = given.get("networkConfigs")
    if several and given.get("networkConfig"):
        raise context.bad_request("only one of network_config and network_configs may be set")
    if not several:
        return {"networkConfig": parse_network(context, call, given.get("networkConfig") or {})}
    parsed = [parse_network(context, call, config) for config in several]
    return {"networkConfig": parsed[0], "networkConfigs": parsed}
