"""The regions of a project, with the external addresses that its slices use."""

from __future__ import annotations

from functools import partial

from tpukit.emulator.compute_service.projects import found_page, not_found
from tpukit.emulator.core.api_errors import Json
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import Call, ServiceContext, Views, project_number
from tpukit.emulator.tpu_service.catalogue import Catalogue, region_of
from tpukit.emulator.tpu_service.quotas import ADDRESS_METRIC

#: The default quota of external addresses of a project in a region.
_ADDRESSES = 100_000


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
        return used
