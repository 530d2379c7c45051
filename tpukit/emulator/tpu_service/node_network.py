"""Which network and subnetwork a node is on: both have to exist, in its region."""

from __future__ import annotations

import re

from tpukit.emulator.core.api_errors import Json
from tpukit.emulator.core.service_context import Call, ServiceContext
from tpukit.emulator.tpu_service.catalogue import region_of

_NETWORK = re.compile(r"projects/[^/]+/global/networks/[^/]+$")
_SUBNETWORK = re.compile(r"projects/[^/]+/regions/[^/]+/subnetworks/[^/]+$")
_REGIONAL = re.compile(r"regions/([^/]+)/subnetworks/[^/]+$")


def parse_network(context: ServiceContext, call: Call, config: Json) -> Json:
    """Return a NetworkConfig with full names.

    Raises `ApiError` for a network or a subnetwork that there is not, and for a subnetwork of
    another region or another network.
    """
    network = full_network(context, call.project, config.get("network"))
    if not context.has_network(call.project, network):
        raise context.bad_request(f"network_config.network: the resource '{network}' was not found")
    subnetwork = _full_subnetwork(context, call, network, config.get("subnetwork"))
    region, owner = region_of(call.path["zone"]), context.network_of(subnetwork)
    named = f"network_config.subnetwork: the resource '{subnetwork}'"
    if subnetwork.split("/")[3] != region:
        raise context.bad_request(f"{named} is not in the region {region}")
    if not owner:
        raise context.bad_request(f"{named} was not found")
    if owner != network:
        raise context.bad_request(f"{named} is not of the network '{network}'")
    return {
        **config,
        "network": network,
        "subnetwork": subnetwork,
        "enableExternalIps": config.get("enableExternalIps", False),
    }


def full_network(context: ServiceContext, project: str, text: str | None) -> str:
    """Return `projects/P/global/networks/N` for a name, a partial path, a whole link or none."""
    match = _NETWORK.search(text or "")
    if match:
        return context.by_id(match[0])
    return f"projects/{project}/global/networks/{(text or 'default').rsplit('/', 1)[-1]}"


def _full_subnetwork(context: ServiceContext, call: Call, network: str, text: str | None) -> str:
    """Return `projects/P/regions/R/subnetworks/S` for a name, a path, a whole link or none.

    An auto mode network has a subnetwork of its own name in each region: that one, if the call
    names none.
    """
    _, owner, *_, name = network.split("/")
    if match := _SUBNETWORK.search(text or ""):
        return context.by_id(match[0])
    match = _REGIONAL.search(text or "")
    region = match[1] if match else region_of(call.path["zone"])
    return f"projects/{owner}/regions/{region}/subnetworks/{(text or name).rsplit('/', 1)[-1]}"
