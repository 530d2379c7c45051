"""The network and subnetwork of a node: both must exist, the subnetwork in the node's region."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpukit.accelerators import region_of
from tpukit.emulator.core.api_errors import Json, invalid
from tpukit.emulator.core.service_context import Call, ServiceContext

#: The optional text before `projects/`: the start of a link or of a full resource name.
_ROOT = r"(?:(?:https?://[^/\s]+)?/compute/\w+/|//compute\.googleapis\.com/)?"
_NETWORK = re.compile(rf"(?:(?:{_ROOT}projects/([^/\s]+)/)?global/networks/)?([^/\s]+)")
_SUBNETWORK = re.compile(
    rf"(?:(?:{_ROOT}projects/([^/\s]+)/)?regions/([^/\s]+)/subnetworks/)?([^/\s]+)"
)


def parse_network(context: ServiceContext, call: Call, config: Json) -> Json:
    """Return a NetworkConfig with full names.

    Raises `ApiError` if the network or subnetwork does not exist, or if the subnetwork belongs to
    another region or network.
    """
    network = full_network(context, call.project, config.get("network"))
    if not context.has_network(call.project, network):
        raise context.bad_request(f"network_config.network: the resource '{network}' was not found")
    subnetwork = full_subnetwork(context, call, network, config.get("subnetwork"))
    region, owner = region_of(call.path["zone"]), context.network_of(subnetwork)
    named = f"network_config.subnetwork: the resource '{subnetwork}'"
    if subnetwork.split("/")[3] != region:
        raise context.bad_request(f"{named} is not in the region {region}")
    if not owner:
        raise context.bad_request(f"{named} was not found")
    if owner != network:
        raise context.bad_request(f"{named} is not in the network '{network}'")
    return {
        **config,
        "network": network,
        "subnetwork": subnetwork,
        "enableExternalIps": config.get("enableExternalIps", False),
    }


def full_network(context: ServiceContext, project: str, text: str | None) -> str:
    """Return `projects/P/global/networks/N` for a name, a path or a link (default: "default")."""
    owner, name = _parts(_NETWORK, "network", text or "default")
    return context.by_id(f"projects/{owner or project}/global/networks/{name}")


def full_subnetwork(context: ServiceContext, call: Call, network: str, text: str | None) -> str:
    """Return `projects/P/regions/R/subnetworks/S` for a name, a path, a link or None.

    None means the subnetwork with the network's name, which an auto mode network has in each
    region.
    """
    _, its_owner, *_, its_name = network.split("/")
    owner, region, name = _parts(_SUBNETWORK, "subnetwork", text or its_name)
    region = region or region_of(call.path["zone"])
    return context.by_id(f"projects/{owner or its_owner}/regions/{region}/subnetworks/{name}")


def _parts(form: re.Pattern[str], field: str, text: str) -> Sequence[str | None]:
    """Return the parts of a resource's name; raise `ApiError` if the name is malformed."""
    match = form.fullmatch(text)
    if match is None:
        # Compute Engine's message: GoogleCloudPlatform/cloud-image-tests#537.
        raise invalid(f"Invalid value for field '{field}': '{text}'. The URL is malformed.")
    return match.groups()
