"""Quotas on a project's slices in a zone. Without a user's change there are none.

Google has separate quotas for single devices and pods of v2 and v3, and for v5litepod of up to 8
chips (serving): Cloud TPU documentation, "Quotas". They count cores or chips, like the name of the
accelerator type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tpukit.accelerators import AcceleratorType, all_types
from tpukit.emulator.core.api_errors import ApiError, Json
from tpukit.emulator.core.service_context import Call, ServiceContext, project_number

#: The parts of a quota's name before and after "Preemptible". Public error reports name v2,
#: v5litepod, v5p and v6e; the names of v3 and v4 are derived from them.
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
#: By the start of a machine type's name, Compute Engine's quotas of chips in a region: on demand,
#: and preemptible. Users have reported v6e's names and v5p's first; the others are derived.
COMPUTE_QUOTAS = {
    "ct6e": ("TPUS-PER-TPU-FAMILY-per-project-region", "PREEMPTIBLE-TPU-V6E-per-project-region"),
    "ct5p": ("TPU-V5P-per-project-region", "PREEMPTIBLE-TPU-V5P-per-project-region"),
    "tpu7x": ("TPUS-PER-TPU-FAMILY-per-project-region", "PREEMPTIBLE-TPU-V7X-per-project-region"),
}
_PODS = ("v2", "v3")
#: The largest v5litepod that counts as serving.
_SERVING_CHIPS = 8


class Quotas:
    """The quotas by zone and name; each applies to every project separately."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._records = context.state.quotas

    def set(self, name: str, place: str, limit: int) -> None:
        """Set a quota by Google's name, in a zone or, for `ADDRESS_METRIC`, in a region."""
        self._records[f"{place}/{name}"] = {"name": name, "zone": place, "limit": limit}

    def remove(self, name: str, place: str) -> bool:
        """Remove a quota; return True if it was set."""
        return self._records.pop(f"{place}/{name}", None) is not None

    def documents(self) -> list[Json]:
        """Return every quota, with its use by each project."""
        return [
            {**record, "used": self._used(record["zone"], record["name"])}
            for record in self._records.values()
        ]

    def check(self, call: Call, nodes: Iterable[Json]) -> None:
        """Raise RESOURCE_EXHAUSTED if the nodes exceed a quota of the call's project.

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
        """Yield (full name, node) for everything that uses quota.

        Lost slices and failed requests use it until they are deleted: reports of users of Google's
        queue.
        """
        state = self._context.state
        for name, record in state.nodes.items():
            if not record["node"].get("queuedResource"):
                yield name, record["node"]
        for name, record in state.queued_resources.items():
            for spec in record["request"]["tpu"]["nodeSpec"]:
                yield name, spec["node"]


def limit_name(kind: AcceleratorType, spot: bool) -> str:
    """Return Google's name of the quota for slices of this type."""
    generation = kind.facts.name
    start, end = _NAMES[generation]
    if generation in _PODS and kind.workers > 1:
        end = "Pod"
    elif generation == "v5litepod" and kind.chips <= _SERVING_CHIPS:
        end += "Serving"
    return f"{start}{'Preemptible' if spot else ''}{end}PerProjectPerZoneForTPUAPI"


def limit_names() -> tuple[str, ...]:
    """Return Google's names of the quotas for slices of all types."""
    names = (limit_name(kind, spot) for kind in all_types() for spot in (False, True))
    return tuple(dict.fromkeys(names))


def _sizes(nodes: Iterable[Json]) -> dict[str, int]:
    """Return the quota that nodes need, by the quotas' names; reserved nodes need none."""
    sizes: dict[str, int] = {}
    for node in nodes:
        scheduling = node["schedulingConfig"]
        if not scheduling.get("reserved"):
            spot = bool(scheduling.get("spot") or scheduling.get("preemptible"))
            kind = AcceleratorType.parse(node["acceleratorType"])
            name = limit_name(kind, spot)
            sizes[name] = sizes.get(name, 0) + kind.size
    return sizes
