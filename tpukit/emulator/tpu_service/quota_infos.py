"""Cloud Quotas: the names and limits of the quotas on slices."""

from __future__ import annotations

from tpukit.emulator.core.api_errors import Json, not_found
from tpukit.emulator.core.service_context import Call, listing, project_number
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.tpu_service.quotas import ADDRESS_METRIC, Quotas, limit_names

_TPU = "tpu.googleapis.com"
#: The value of a quota without a limit, as in public answers of the API.
_UNLIMITED = "-1"
#: Cloud Quotas API reference, QuotaInfo: the only location of a quota's name.
_LOCATION = "global"


class QuotaInfos:
    """The quotas of the Cloud TPU API, without a limit where the user has set none."""

    def __init__(self, catalogue: Catalogue, quotas: Quotas) -> None:
        self._catalogue = catalogue
        self._quotas = quotas

    def list(self, call: Call) -> Json:
        return listing(call, "quotaInfos", self._infos(call), 1000)

    def get(self, call: Call) -> Json:
        name = f"{_parent(call)}/quotaInfos/{call.path['quota']}"
        infos = self._infos(call)
        if name not in infos:
            raise not_found(name)
        return infos[name]

    def _infos(self, call: Call) -> dict[str, Json]:
        """Return the quotas of the service by their full names."""
        if call.path["location"] != _LOCATION:
            raise not_found(_parent(call))
        names = limit_names() if call.path["service"] == _TPU else ()
        infos = (self._info(call, name) for name in names)
        return {info["name"]: info for info in infos}

    def _info(self, call: Call, name: str) -> Json:
        """Return one quota; its dimensions go from more specific ones to less specific ones."""
        limits = {
            record["zone"]: str(record["limit"])
            for record in self._quotas.documents()
            if record["name"] == name != ADDRESS_METRIC
        }
        rest = [zone for zone in self._catalogue.zones if zone not in limits]
        return {
            "name": f"{_parent(call)}/quotaInfos/{name}",
            "quotaId": name,
            "service": _TPU,
            "isPrecise": True,
            "containerType": "PROJECT",
            "dimensions": ["zone"],
            "quotaDisplayName": name,
            "quotaIncreaseEligibility": {"isEligible": True},
            "dimensionsInfos": [
                *(_limit(value, [zone], {"zone": zone}) for zone, value in limits.items()),
                _limit(_UNLIMITED, rest, {}),
            ],
        }


def _limit(value: str, zones: list[str], dimensions: Json) -> Json:
    return {
        "dimensions": dimensions,
        "details": {"value": value},
        "applicableLocations": zones,
    }


def _parent(call: Call) -> str:
    number = project_number(call.project)
    return f"projects/{number}/locations/{call.path['location']}/services/{call.path['service']}"
