"""The subnetworks of a project: those of its auto mode networks, and created ones."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from tpukit.emulator.compute_service.projects import (
    ComputeOperations,
    aggregated_page,
    found_page,
    not_found,
)
from tpukit.emulator.core.api_errors import ApiError, Json, invalid
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import (
    RESOURCE_ID,
    Call,
    ServiceContext,
    Views,
    project_number,
)
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.tpu_service.node_network import full_network

#: VPC documentation, "Auto mode IPv4 ranges": automatic subnetworks are /20 blocks of this range.
_AUTOMATIC = ip_network("10.128.0.0/9")
_AUTOMATIC_PREFIX = 20


class Subnetworks:
    """The subnetworks of every project."""

    def __init__(
        self, context: ServiceContext, operations: ComputeOperations, catalogue: Catalogue
    ) -> None:
        self._context = context
        self._operations = operations
        self._catalogue = catalogue

    def insert(self, call: Call) -> Json:
        name, region = call.body.get("name", ""), self._region(call)
        if not RESOURCE_ID.fullmatch(name):
            raise _bad("name", name, f"Must be a match of regex '{RESOURCE_ID.pattern}'")
        network = full_network(self._context, call.project, call.body.get("network"))
        if not call.body.get("network") or not self._context.has_network(call.project, network):
            raise not_found(network)
        full = f"{_place(call.project, region)}{name}"
        if begun := self._operations.repeated(call, "insert", full):
            return begun
        if self._context.network_of(full):
            raise ApiError("ALREADY_EXISTS", f"The resource '{full}' already exists")
        fields = {
            "network": network,
            "ipCidrRange": self._block(call, network),
            "creationTimestamp": self._context.stamp(),
        }
        self._context.offer(f"subnetworks/{full}", True, fields=fields)
        return self._operations.begin(call, "insert", full)

    def get(self, call: Call) -> Json:
        return self._view(self._find(call))

    def list(self, call: Call) -> Json:
        names = self._names(call.project, self._region(call))
        return {"kind": "compute#subnetworkList", **found_page(call, Views(names, self._view))}

    def aggregated(self, call: Call) -> Json:
        """Return the subnetworks of all regions, by `regions/REGION`."""
        names = (
            name for region in self._catalogue.regions for name in self._names(call.project, region)
        )
        return {
            "kind": "compute#subnetworkAggregatedList",
            **aggregated_page(call, Views(names, self._view), "regions", "subnetworks"),
        }

    def delete(self, call: Call) -> Json:
        """Delete a subnetwork that is not automatic and has no nodes."""
        asked = f"{_place(call.project, call.path['region'])}{call.path['subnetwork']}"
        if begun := self._operations.repeated(call, "delete", asked):
            return begun
        full = self._find(call)
        if f"subnetworks/{full}" not in self._context.state.offers:
            # The rule is from the VPC documentation, "Delete subnets"; the message is ours.
            raise invalid(f"Cannot delete auto subnetwork from an auto subnet mode network: {full}")
        for node, record in self._context.state.nodes.items():
            if record["node"]["networkConfig"].get("subnetwork") == full:
                raise ApiError(
                    "INVALID_ARGUMENT",
                    f"The subnetwork resource '{full}' is already being used by '{node}'",
                    reason="resourceInUseByAnotherResource",
                )
        del self._context.state.offers[f"subnetworks/{full}"]
        return self._operations.begin(call, "delete", full)

    def _region(self, call: Call) -> str:
        region = call.path["region"]
        if region not in self._catalogue.regions:
            raise not_found(f"projects/{call.project}/regions/{region}")
        return region

    def _block(self, call: Call, network: str) -> str:
        """Return a new subnetwork's range; raise `ApiError` if another one overlaps it."""
        text = call.body.get("ipCidrRange", "")
        try:
            block = ip_network(text)
        except ValueError as error:
            why = "Must be a valid CIDR address range."
            raise _bad("ipCidrRange", text, why) from error
        offers = self._context.state.offers
        taken = {
            offers[f"subnetworks/{name}"]["fields"]["ipCidrRange"]
            for name in self._context.subnetworks_of(network)
        }
        if self._context.network_fields(network).get("autoCreateSubnetworks", True):
            taken.add(str(_AUTOMATIC))
        for other in sorted(taken):
            if block.overlaps(ip_network(other)):
                why = f"IP CIDR range conflicts with existing subnetwork range {other}."
                raise _bad("ipCidrRange", text, why)
        return str(block)

    def _find(self, call: Call) -> str:
        full = f"{_place(call.project, self._region(call))}{call.path['subnetwork']}"
        if not self._context.network_of(full):
            raise not_found(full)
        return full

    def _names(self, project: str, region: str) -> Iterator[str]:
        place = _place(project, region)
        networks = self._context.added(f"networks/projects/{project}/global/networks/")
        names = {"default", *networks, *self._context.added(f"subnetworks/{place}")}
        for name in sorted(names):
            if self._context.network_of(place + name):
                yield place + name

    def _view(self, full: str) -> Json:
        _, project, _, region, _, name = full.split("/")
        own = self._context.state.offers.get(f"subnetworks/{full}", {}).get("fields", {})
        block = own.get("ipCidrRange") or self._automatic_block(region)
        base = self._context.compute_base
        return {
            "kind": "compute#subnetwork",
            "id": project_number(full),
            "creationTimestamp": own.get("creationTimestamp", timestamp(0)),
            "name": name,
            "network": base + self._context.network_of(full),
            "ipCidrRange": block,
            "gatewayAddress": str(ip_network(block)[1]),
            "region": f"{base}projects/{project}/regions/{region}",
            "selfLink": base + full,
            "privateIpGoogleAccess": False,
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
        }

    def _automatic_block(self, region: str) -> str:
        place = sorted(self._catalogue.regions).index(region)
        size = 2 ** (32 - _AUTOMATIC_PREFIX)
        return f"{_AUTOMATIC[place * size]}/{_AUTOMATIC_PREFIX}"


def _place(project: str, region: str) -> str:
    return f"projects/{project}/regions/{region}/subnetworks/"


def _bad(field: str, value: str, why: str) -> ApiError:
    return invalid(f"Invalid value for field 'resource.{field}': '{value}'. {why}")
