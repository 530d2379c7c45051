"""Limits on what the slices of a project may have in a zone; there is none until a user sets one.

Google counts single devices and pods of v2 and v3 apart, and v5litepod of up to 8 chips as serving
(Cloud TPU documentation, "Quotas"), in cores or chips as the name of the accelerator type does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tpukit.accelerators import AcceleratorType
from tpukit.emulator.core.api_errors import ApiError, Json
from tpukit.emulator.core.service_context import Call, ServiceContext, project_number

#: How the names of limits start and what stands after "Preemptible". Those of v2, v5litepod, v5p
#: and v6e are in public error reports, those of v3 and v4 are formed alike.
_NAMES = {
    "v2": ("TPUV2s", ""),
    "v3": ("TPUV3s", ""),
    "v4": ("TPUV4s", ""),
    "v5litepod": ("TPUV5s", "Litepod"),
    "v5p": ("TPUV5P", ""),
    "v6e": ("TPUV6E", ""),
}
#: Compute Engine API reference, regions: a region's limit on external addresses in use.
ADDRESS_METRIC = "IN_USE_ADDRESSES"
_PODS = ("v2", "v3")
#: The largest v5litepod that counts as serving.
_SERVING_CHIPS = 8


class Quotas:
    """The limits by zone and name, which hold for each project by itself."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._records = context.state.quotas

    def set(self, name: str, place: str, limit: int) -> None:
        """Set a limit by its Google name, in a zone or, for `ADDRESS_METRIC`, in a region."""
        self._records[f"{place}/{name}"] = {"name": name, "zone": place, "limit": limit}

    def remove(self, name: str, place: str) -> bool:
        """Remove a limit; return True if it was set."""
        return self._records.pop(f"{place}/{name}", None) is not None

    def documents(self) -> list[Json]:
        """Return every limit, with what each project has of it."""
        return [
            {**record, "used": self._used(record["zone"], record["name"])}
            for record in self._records.values()
        ]

    def check(self, call: Call, nodes: Iterable[Json]) -> None:
        """Refuse nodes for which a project has not enough left: RESOURCE_EXHAUSTED.

        Recorded: tests/recorded/exchanges/tpu-quota.
        """
        zone, wanted = call.path["zone"], _sizes(nodes)
        for name, size in wanted.items():
            record = self._records.get(f"{zone}/{name}")
            if record and self._used(zone, name).get(call.project, 0) + size > record["limit"]:
                limit = record["limit"]
                failed = {
                    "subject": f"project:{project_number(call.project)}",
                    "description": f"Quota '{name}' exhausted. Limit {limit} in zone {zone}",
                }
                kind = "type.googleapis.com/google.rpc.QuotaFailure"
                text = f"Quota limit '{name}' has been exceeded. Limit: {limit} in zone {zone}."
                raise ApiError(
                    "RESOURCE_EXHAUSTED", text, [{"@type": kind, "violations": [failed]}]
                )

    def _used(self, zone: str, name: str) -> dict[str, int]:
        used: dict[str, int] = {}
        for full, node in self._holders():
            _, project, _, place, *_ = full.split("/")
            if place == zone and (size := _sizes([node]).get(name)):
                used[project] = used.get(project, 0) + size
        return used

    def _holders(self) -> Iterator[tuple[str, Json]]:
        """Yield what counts: also slices that are lost and requests that have failed.

        Both book quota until they are deleted: reports of users of Google's queue.
        """
        state = self._context.state
        for name, record in state.nodes.items():
            if not record["node"].get("queuedResource"):
                yield name, record["node"]
        for name, record in state.queued_resources.items():
            for spec in record["request"]["tpu"]["nodeSpec"]:
                yield name, spec["node"]


def limit_name(kind: AcceleratorType, spot: bool) -> str:
    """Return Google's name of the limit that a slice of this type counts with."""
    generation = kind.facts.name
    start, end = _NAMES[generation]
    if generation in _PODS and kind.workers > 1:
        end = "Pod"
    elif generation == "v5litepod" and kind.chips <= _SERVING_CHIPS:
        end += "Serving"
    return f"{start}{'Preemptible' if spot else ''}{end}PerProjectPerZoneForTPUAPI"


def _sizes(nodes: Iterable[Json]) -> dict[str, int]:
    """Return how much some nodes count, by the limits' names; reserved ones have their own."""
    found: dict[str, int] = {}
    for node in nodes:
        scheduling = node["schedulingConfig"]
        if not scheduling.get("reserved"):
            spot = bool(scheduling.get("spot") or scheduling.get("preemptible"))
            kind = AcceleratorType.parse(node["acceleratorType"])
            name = limit_name(kind, spot)
            found[name] = found.get(name, 0) + kind.size
    return found
