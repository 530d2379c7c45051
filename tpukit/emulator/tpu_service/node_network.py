"""Which network and subnetwork a node is on: both have to exist, in its region."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpukit.emulator.core.api_errors import Json, invalid
from tpukit.emulator.core.service_context import Call, ServiceContext
from tpukit.emulator.tpu_service.catalogue import region_of

#: What may stand before `projects/`: a link's beginning, or the service of a full resource name.
_ROOT = r"(?:(?:https?://[^/\s]+)?/compute/\w+/|//compute\.googleapis\.com/)?"
_NETWORK = re.compile(rf"(?:(?:{_ROOT}projects/([^/\s]+)/)?global/networks/)?([^/\s]+)")
_SUBNETWORK = re.compile(
    rf"(?:(?:{_ROOT}projects/([^/\s]+)/)?regions/([^/\s]+)/subnetworks/)?([^/\s]+)"
)


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
    owner, name = _parts(_NETWORK, "network", text or "default")
    return context.by_id(f"projects/{owner or project}/global/networks/{name}")


def _full_subnetwork(context: ServiceContext, call: Call, network: str, text: str | None) -> str:
    """Return `projects/P/regions/R/subnetworks/S` for a name, a path, a whole link or none.

    An auto mode network has a subnetwork of its own name in each region: that one, if the call
    names none.
    """
    _, its_owner, *_, its_name = network.split("/")
    owner, region, name = _parts(_SUBNETWORK, "subnetwork", text or its_name)
    region = region or region_of(call.path["zone"])
    return context.by_id(f"projects/{owner or its_owner}/regions/{region}/subnetworks/{name}")


def _parts(form: re.Pattern[str], field: str, text: str) -> Sequence[str | None]:
    """Return the parts of a resource's name; raise `ApiError` for a text that is none."""
    match = form.fullmatch(text)
    if match is None:
        # The words are Compute Engine's: GoogleCloudPlatform/cloud-image-tests#537.
        raise invalid(f"Invalid value for field '{field}': '{text}'. The URL is malformed.")
    return match.groups()
