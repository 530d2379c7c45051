"""Checks of the quotas on slices, by the names that Google's refusals have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import inf

from tpukit.accelerators import AcceleratorType, is_listed
from tpukit.doctor.findings import Finding
from tpukit.errors import Fix, QuotaExceeded
from tpukit.models import SliceRequest

#: The parts of a quota's name before and after "Preemptible", by generation. Refusals and public
#: lists have those of v2, v4, v5litepod, v5p and v6e (quotas.toml); v3 is assumed to follow v2.
_NAMES = {
    "v2": ("TPUV2s", ""),
    "v3": ("TPUV3s", ""),
    "v4": ("TPUV4s", ""),
    "v5litepod": ("TPUV5s", "Litepod"),
    "v5p": ("TPUV5P", ""),
    "v6e": ("TPUV6E", ""),
}
#: Cloud TPU documentation, "Cloud TPU quotas": v2 and v3 of several workers have a quota of their
#: own, and so has v5litepod of up to 8 chips.
_PODS, _SERVING_CHIPS = ("v2", "v3"), 8
_FLAGS = {"on-demand": "without --spot", "spot": "with --spot"}
#: Only the console takes requests without further APIs.
_REQUEST = "shows other zones; or ask for more at https://console.cloud.google.com/iam-admin/quotas"


def type_findings(
    limits: Mapping[str, int],
    zone: str,
    accelerator: AcceleratorType,
    ways: Collection[str] = tuple(_FLAGS),
) -> Iterator[Finding]:
    """Yield a finding for each way to buy a slice of a type: `on-demand`, `spot`.

    `limits` are those of `GoogleProject.limits` in the zone. If another way has quota, too small
    a quota is only a warning.
    """
    needed = {way: names_of(limits, accelerator, way) for way in ways}
    enough = [way for way, names in needed.items() if names and _enough(limits, accelerator, names)]
    for way, names in needed.items():
        about = f"{accelerator.name} {way} in {zone}"
        if not names:
            yield Finding("quota", "not checked", f"the API lists no quota for {about}")
        elif way in enough:
            yield Finding("quota", "ok", f"{about}: {_told(limits, names)}")
        else:
            said = f"{about} needs {accelerator.size}, but {_told(limits, names)}"
            note = f"shows other zones; or create it {_FLAGS[enough[0]]}" if enough else _REQUEST
            fix = Fix.command("tpukit", "types", accelerator.name, note=note)
            yield Finding("quota", "warning" if enough else "failure", said, fix)


def zone_findings(
    limits: Mapping[str, int], zone: str, generations: Collection[str]
) -> Iterator[Finding]:
    """Yield the finding on the quotas of the generations that a zone offers."""
    stems = tuple(_NAMES[generation][0] for generation in generations if generation in _NAMES)
    about = {name: limit for name, limit in limits.items() if stems and name.startswith(stems)}
    usable = sorted(name for name, limit in about.items() if limit)
    if not about:
        said = f"the API lists no quota of the types that {zone} offers"
        yield Finding("quota", "not checked", said)
    elif not usable:
        said = f"every TPU quota in {zone} is 0: {', '.join(sorted(about))}"
        yield Finding("quota", "failure", said, Fix.command("tpukit", "types", note=_REQUEST))
    elif all(limit < 0 for limit in about.values()):
        yield Finding("quota", "ok", f"no TPU quota has a limit in {zone}")
    else:
        yield Finding("quota", "ok", f"in {zone}, {_told(about, usable)}")


def names_of(limits: Mapping[str, int], accelerator: AcceleratorType, way: str) -> list[str]:
    """Return the names of the quotas that a slice counts on, of the zone and of the region."""
    generation = accelerator.facts.name
    if generation not in _NAMES:
        return []
    start, end = _NAMES[generation]
    pod = generation in _PODS and accelerator.workers > 1
    serving = generation == "v5litepod" and accelerator.chips <= _SERVING_CHIPS
    bought = "Preemptible" if way == "spot" else ""
    stem = f"{start}{bought}{end}{'Pod' if pod else ''}{'Serving' if serving else ''}Per"
    return sorted(name for name in limits if name.startswith(stem))


def no_quota(limits: Mapping[str, int], request: SliceRequest) -> QuotaExceeded | None:
    """Return the error of a request that counts on a quota of 0, or None if none is known to be."""
    way, kind = request.provisioning.replace("preemptible", "spot"), request.accelerator_type
    if request.api != "tpu" or way not in _FLAGS or not is_listed(kind):
        return None
    names = names_of(limits, AcceleratorType.parse(kind), way)
    if not (closed := [name for name in names if limits[name] == 0]):
        return None
    return QuotaExceeded(
        f"{', '.join(closed)} is 0 in {request.zone}",
        reason="quota is 0",
        fix=Fix.command("tpukit", "types", kind, note=_REQUEST),
        retry="after-fix",
    )


def most(limits: Mapping[str, int], accelerator: AcceleratorType) -> float | None:
    """Return the largest size that a quota of a type allows; None if the API lists no quota."""
    ways = [names_of(limits, accelerator, way) for way in _FLAGS]
    sizes = [min(inf if limits[n] < 0 else limits[n] for n in names) for names in ways if names]
    return max(sizes, default=None)


def _enough(limits: Mapping[str, int], accelerator: AcceleratorType, names: list[str]) -> bool:
    return not any(0 <= limits[name] < accelerator.size for name in names)


def _told(limits: Mapping[str, int], names: Collection[str]) -> str:
    return ", ".join(
        f"{name} {'has no limit' if limits[name] < 0 else f'is {limits[name]}'}" for name in names
    )
