"""The subnetworks of a project: those of its auto mode networks, and created ones."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from tpukit.emulator.compute_service.collection import DocumentCollection
from tpukit.emulator.compute_service.compute_operations import bad, not_found
from tpukit.emulator.core.api_errors import Json, invalid
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import Call, project_number
from tpukit.emulator.tpu_service.node_network import full_network

#: VPC documentation, "Auto mode IPv4 ranges": automatic subnetworks are /20 blocks of this range.
_AUTOMATIC = ip_network("10.128.0.0/9")
_AUTOMATIC_PREFIX = 20


class Subnetworks(DocumentCollection):
    """The subnetworks of every project."""

    kind, collection = "subnetwork", "subnetworks"

    def delete(self, call: Call) -> Json:
        """Delete a subnetwork that is not automatic and has no nodes."""
        full = self._full_name(call)
        if self._exists(full) and f"subnetworks/{full}" not in self.records:
            # The rule is from the VPC documentation, "Delete subnets"; the message is ours.
            raise invalid(f"Cannot delete auto subnetwork from an auto subnet mode network: {full}")
        return super().delete(call)

    def view(self, full: str) -> Json:
        _, project, _, region, _, name = full.split("/")
        own = self.records.get(f"subnetworks/{full}", {}).get("fields", {})
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

    def _fields(self, call: Call) -> Json:
        network = full_network(self._context, call.project, call.body.get("network"))
        if not call.body.get("network") or not self._context.has_network(call.project, network):
            raise not_found(network)
        text = call.body.get("ipCidrRange", "")
        try:
            block = ip_network(text)
        except ValueError as error:
            raise bad("ipCidrRange", text, "Must be a valid CIDR address range.") from error
        return {
            "network": network,
            "ipCidrRange": str(block),
            "creationTimestamp": self._context.stamp(),
        }

    def _put(self, full: str, fields: Json) -> None:
        """Record a subnetwork; raise `ApiError` if another one overlaps its range."""
        network, block = fields["network"], ip_network(fields["ipCidrRange"])
        taken = {
            self.records[f"subnetworks/{name}"]["fields"]["ipCidrRange"]
            for name in self._context.subnetworks_of(network)
        }
        if self._context.network_fields(network).get("autoCreateSubnetworks", True):
            taken.add(str(_AUTOMATIC))
        for other in sorted(taken):
            if block.overlaps(ip_network(other)):
                why = f"IP CIDR range conflicts with existing subnetwork range {other}."
                raise bad("ipCidrRange", block, why)
        self._context.offer(f"subnetworks/{full}", True, fields=fields)

    def _remove(self, full: str) -> None:
        del self.records[f"subnetworks/{full}"]

    def _users(self, full: str) -> Iterator[str]:
        for node, record in self._context.state.nodes.items():
            if record["node"]["networkConfig"].get("subnetwork") == full:
                yield node

    def _exists(self, full: str) -> bool:
        return bool(self._context.network_of(full))

    def _names(self, place: str) -> Iterator[str]:
        project = place.split("/")[1]
        networks = self._context.added(f"networks/projects/{project}/global/networks/")
        for region in self._catalogue.regions:
            here = f"projects/{project}/regions/{region}/subnetworks/"
            names = {"default", *networks, *self._context.added(f"subnetworks/{here}")}
            shown = sorted(names) if here.startswith(place) else ()
            yield from (here + name for name in shown if self._exists(here + name))

    def _automatic_block(self, region: str) -> str:
        place = sorted(self._catalogue.regions).index(region)
        size = 2 ** (32 - _AUTOMATIC_PREFIX)
        return f"{_AUTOMATIC[place * size]}/{_AUTOMATIC_PREFIX}"
