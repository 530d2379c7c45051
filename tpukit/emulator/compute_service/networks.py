"""The networks, zones and regions of a project."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tpukit.accelerators import region_of
from tpukit.emulator.compute_service.collection import DocumentCollection
from tpukit.emulator.compute_service.compute_operations import bad, found_page, not_found
from tpukit.emulator.core.api_errors import ApiError, Json
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import (
    Call,
    ServiceContext,
    Views,
    project_number,
    resource_id,
)
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.tpu_service.quotas import ADDRESS_METRIC

#: The default fields of a network.
_DEFAULTS = {
    "autoCreateSubnetworks": True,
    "routingConfig": {"routingMode": "REGIONAL"},
    "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
}
#: Compute Engine's discovery document on `mtu`.
_SMALLEST_MTU, _LARGEST_MTU = 1300, 8896
#: The default quota of external addresses of a project in a region.
_ADDRESSES = 100_000


class Networks(DocumentCollection):
    """The networks of a project: `default`, and those that were created or added.

    A created network has no rules. A service project uses its host project's networks.
    """

    kind, collection = "network", "networks"

    def view(self, full: str) -> Json:
        base, number, name = self._context.compute_base, resource_id(full), full.rsplit("/", 1)[1]
        own = self._context.network_fields(full)
        if name == "default" and not own:
            own = {"description": "Default network for the project"}
        subnetworks = [base + subnetwork for subnetwork in self._subnetworks(full)]
        return {
            "kind": "compute#network",
            "creationTimestamp": timestamp(0),
            **_DEFAULTS,
            **own,
            "id": number,
            "name": name,
            "selfLink": base + full,
            "selfLinkWithId": f"{base}{full.rpartition('/')[0]}/{number}",
            **({"subnetworks": subnetworks} if subnetworks else {}),
        }

    def _fields(self, call: Call) -> Json:
        mtu = call.body.get("mtu", _SMALLEST_MTU)
        if not _SMALLEST_MTU <= mtu <= _LARGEST_MTU:
            raise bad("mtu", mtu, f"Must be from {_SMALLEST_MTU} to {_LARGEST_MTU}.")
        if host := self._context.host_project(call.project):
            why = f"In the emulator a project that is attached to {host} has no networks."
            raise ApiError("FAILED_PRECONDITION", why)
        return {**call.body, "creationTimestamp": self._context.stamp()}

    def _put(self, full: str, fields: Json) -> None:
        self._context.offer_network(full, True, fields)

    def _remove(self, full: str) -> None:
        self._context.offer_network(full, False)

    def _names(self, place: str) -> list[str]:
        known = sorted({"default", *self._context.added(f"networks/{place}")})
        return [place + name for name in known if self._exists(place + name)]

    def _exists(self, full: str) -> bool:
        return self._context.has_network(full.split("/")[1], full)

    def _users(self, full: str) -> Iterator[str]:
        """Yield the rules, nodes, instances and created subnetworks of a network."""
        state = self._context.state
        yield from (name for name, rule in state.firewalls.items() if rule["network"] == full)
        for name, record in state.nodes.items():
            if record["node"]["networkConfig"]["network"] == full:
                yield name
        for name, record in state.instances.items():
            if record["instance"]["networkInterfaces"][0]["network"] == full:
                yield name
        yield from self._context.subnetworks_of(full)

    def _subnetworks(self, network: str) -> Iterator[str]:
        """Yield a network's automatic subnetworks, one per region, and its created subnetworks."""
        _, project, *_, name = network.split("/")
        places = (f"projects/{project}/regions/{region}" for region in self._catalogue.regions)
        automatic = [f"{place}/subnetworks/{name}" for place in places]
        created = self._context.added("subnetworks/")
        for subnetwork in dict.fromkeys([*automatic, *created]):
            if self._context.network_of(subnetwork) == network:
                yield subnetwork


class Zones:
    """The zones of Compute Engine; the emulator knows only those with TPUs."""

    def __init__(self, context: ServiceContext, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue

    def get(self, call: Call) -> Json:
        zone = call.path["zone"]
        if zone not in self._catalogue.zones:
            raise not_found(f"projects/{call.project}/zones/{zone}")
        return self._view(call.project, zone)

    def list(self, call: Call) -> Json:
        zones = Views(self._catalogue.zones, partial(self._view, call.project))
        return {"kind": "compute#zoneList", **found_page(call, zones)}

    def _view(self, project: str, zone: str) -> Json:
        base = f"{self._context.compute_base}projects/{project}"
        return {
            "kind": "compute#zone",
            "id": project_number(zone),
            "creationTimestamp": timestamp(0),
            "name": zone,
            "description": zone,
            "supportsPzs": False,
            "status": "UP",
            "region": f"{base}/regions/{region_of(zone)}",
            "selfLink": f"{base}/zones/{zone}",
        }


class Regions:
    """Google's regions, and the regions of all zones."""

    def __init__(self, context: ServiceContext, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue

    def get(self, call: Call) -> Json:
        region = call.path["region"]
        if region not in self._catalogue.regions:
            raise not_found(f"projects/{call.project}/regions/{region}")
        return self._view(call.project, region)

    def list(self, call: Call) -> Json:
        regions = Views(self._catalogue.regions, partial(self._view, call.project))
        return {"kind": "compute#regionList", **found_page(call, regions)}

    def _view(self, project: str, region: str) -> Json:
        base = f"{self._context.compute_base}projects/{project}"
        zones = [zone for zone in self._catalogue.zones if region_of(zone) == region]
        addresses: Json = {
            "metric": ADDRESS_METRIC,
            "limit": float(self._limit(region)),
            "usage": float(self._addresses_in_use(project, region)),
        }
        return {
            "kind": "compute#region",
            "id": project_number(region),
            "creationTimestamp": timestamp(0),
            "name": region,
            "description": region,
            "status": "UP",
            "zones": [f"{base}/zones/{zone}" for zone in zones],
            "quotas": [addresses],
            "selfLink": f"{base}/regions/{region}",
            "supportsPzs": False,
        }

    def _limit(self, region: str) -> int:
        record = self._context.state.quotas.get(f"{region}/{ADDRESS_METRIC}")
        return int(record["limit"]) if record else _ADDRESSES

    def _addresses_in_use(self, project: str, region: str) -> int:
        """Return the number of a project's workers in a region with external addresses."""
        used = 0
        for name, record in self._context.state.nodes.items():
            _, owner, _, zone, *_ = name.split("/")
            external = record["node"]["networkConfig"].get("enableExternalIps")
            if owner == project and region_of(zone) == region and external:
                used += len(record["workers"])
        for name, record in self._context.state.instances.items():
            _, owner, _, zone, *_ = name.split("/")
            external = record["instance"]["networkInterfaces"][0]["accessConfigs"]
            used += bool(owner == project and region_of(zone) == region and external)
        return used
