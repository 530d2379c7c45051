"""The quotas that a request needs: their names, and external addresses."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from tpukit.accelerators import AcceleratorType, is_listed
from tpukit.models import SliceRequest


def quotas(accelerator: AcceleratorType, provisioning: str) -> tuple[str, ...]:
    """Return the names of the known quotas that a slice needs.

    Spot and preemptible slices share quotas (Cloud TPU documentation, "Cloud TPU quotas").
    """
    bought = "spot" if provisioning == "preemptible" else provisioning
    return tuple(
        name
        for row in _table()
        if (row["generation"], row["class"]) == (accelerator.facts.name, bought)
        and row["least"] <= accelerator.size <= row.get("most", accelerator.size)
        for name in row["names"]
    )


def addresses(request: SliceRequest) -> int:
    """Return the number of external addresses, one for each worker; 0 if unknown."""
    if not request.external_addresses or not is_listed(request.accelerator_type):
        return 0
    return AcceleratorType.parse(request.accelerator_type).workers


def needs(request: SliceRequest) -> str:
    """Describe the quotas that a request needs; "" if they are unknown."""
    if not is_listed(request.accelerator_type):
        return ""
    accelerator = AcceleratorType.parse(request.accelerator_type)
    names = quotas(accelerator, request.provisioning)
    unit = accelerator.facts.size_counts
    parts = [f"{accelerator.size} {unit} of {name}" for name in names]
    if number := addresses(request):
        parts.append(f"{number} of the region's IN_USE_ADDRESSES")
    return f"{accelerator.name} in {request.zone} needs {', '.join(parts)}" if parts else ""


# Package data never changes while a process runs.
@cache
def _table() -> list[dict[str, Any]]:
    text = files("tpukit").joinpath("data", "quotas.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["quota"]
    return rows
