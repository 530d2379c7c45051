"""What levels 2 and 3 measured, beside the chip's published peak and beside its neighbours."""

from __future__ import annotations

import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tpukit.accelerators import AcceleratorType
from tpukit.smoke.smoke_report import Measurement
from tpukit.text import one_line

Figure = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0, le=1 << 20)]
Name = Annotated[str, Field(max_length=100)]
PerDevice = Annotated[
    tuple[Annotated[tuple[Figure, ...], Field(max_length=9)], ...], Field(max_length=4096)
]

#: Seconds of a load whose median is what a device can do.
_FIRST_SECONDS = 60.0
_UNITS = {"matmul": "TFLOP/s"}
_DEVIATION = 1.4826
#: What libtpu says of a link, from 0, which is well: `tray1.chip3.ici0.int: 0`.
_LINK_HEALTH = re.compile(r"(?P<link>.+?):\s*(?P<score>[0-9]{1,3})")
#: Links that a note names.
_NAMED = 8


class Bench(BaseModel):
    """What the program's `bench` returns."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    devices: Annotated[dict[Name, PerDevice], Field(max_length=20)]
    all_reduce: Annotated[tuple[tuple[int, Figure], ...], Field(max_length=20)]
    links: Annotated[tuple[tuple[Index, Index, Figure, bool], ...], Field(max_length=100_000)]


class Soak(BaseModel):
    """What the program's `soak` returns."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    window_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    rates: Annotated[tuple[tuple[Figure, ...], ...], Field(min_length=1, max_length=100_000)]
    wrong: Annotated[tuple[Index, ...], Field(max_length=4096)]
    flipped: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=4096)]
    filled_bytes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=4096)]
    metrics: Annotated[dict[Name, tuple[Name, ...]], Field(max_length=20)]


@dataclass(frozen=True)
class WorkerFigures:
    """One worker's part of the measurements; `indices` of its devices among all, in its order."""

    worker: int
    indices: Sequence[int]
    bench: Bench | None
    soak: Soak | None


@dataclass(frozen=True)
class Threshold:
    """Parts of a peak, or of a median, below which a figure is warned of, and fails."""

    warn: float
    fail: float
    sources: tuple[str, ...]
    published: tuple[str, ...] = ()
    devices: int = 0
    deviations: float = 0.0
    unsteadiness: float = 0.0


# Package data never changes while a process runs.
@cache
def thresholds() -> Mapping[str, Threshold]:
    """Return the thresholds by figure; thresholds.toml says what each is of."""
    text = files("tpukit.smoke").joinpath("thresholds.toml").read_text(encoding="utf-8")
    return {name: _threshold(table) for name, table in tomllib.loads(text).items()}


def _threshold(table: dict[str, Any]) -> Threshold:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    return Threshold(**values)


def measurements(
    parts: Sequence[WorkerFigures], accelerator: AcceleratorType, stand_in: bool
) -> tuple[Measurement, ...]:
    """Return every figure of a slice, judged; a CPU device in a TPU's place has no peak."""
    peak = _no_peak if stand_in else _Peaks(accelerator).of
    generation = accelerator.facts.name
    found = [*_devices(parts), *_all_reduces(parts), *_links(parts)]
    judged = [_beside_peak(each, peak(each.what), generation) for each in found]
    slow = _outliers(parts)
    compared = [
        _beside_median(each, slow.get((each.what, each.worker, each.device))) for each in judged
    ]
    return (*compared, *_soaks(parts, stand_in), *_link_healths(parts))


def _no_peak(what: str) -> float | None:
    return None


class _Peaks:
    """The lowest published peak of a device, by figure."""

    def __init__(self, accelerator: AcceleratorType) -> None:
        facts, each = accelerator.facts, accelerator.facts.devices_per_chip
        links = accelerator.links_per_chip
        link = facts.ici_gbytes_per_second_per_link
        self._peaks: dict[str, float] = {
            "matmul": facts.peak_bf16_tflops_per_chip / each,
            "hbm": min(facts.hbm_gbytes_per_second_per_chip, default=0) / each,
            "all-reduce": links * link,
            "link": link,
        }

    def of(self, what: str) -> float | None:
        return self._peaks.get(what) or None


def _devices(parts: Sequence[WorkerFigures]) -> Iterator[Measurement]:
    """Yield the best of the passes of each device."""
    for part in parts:
        for what, figures in (part.bench.devices if part.bench else {}).items():
            for device, passes in enumerate(figures):
                value = max(passes, default=0.0)
                yield Measurement(what, part.worker, device, value, _UNITS.get(what, "GB/s"))


def _all_reduces(parts: Sequence[WorkerFigures]) -> Iterator[Measurement]:
    """Yield one figure a size: each worker saw the same exchange, and the slowest counts."""
    slowest: dict[int, float] = {}
    for size, value in (each for part in parts if part.bench for each in part.bench.all_reduce):
        slowest[size] = min(value, slowest.get(size, value))
    for size, value in slowest.items():
        yield Measurement("all-reduce", None, None, value, "GB/s", size=size)


def _links(parts: Sequence[WorkerFigures]) -> Iterator[Measurement]:
    owners = {n: (part.worker, at) for part in parts for at, n in enumerate(part.indices)}
    slowest: dict[tuple[int, int], tuple[float, bool]] = {}
    for one, other, value, right in (e for p in parts if p.bench for e in p.bench.links):
        least, held = slowest.get((one, other), (value, True))
        slowest[one, other] = min(value, least), right and held
    for (one, other), (value, right) in sorted(slowest.items()):
        worker, device = owners.get(one, (None, one))
        to_worker, to_device = owners.get(other, (None, other))
        yield Measurement(
            "link",
            worker,
            device,
            value,
            "GB/s",
            to_worker=to_worker,
            to_device=to_device,
            verdict="" if right else "fail",
            note="" if right else "what arrived is not what was sent",
        )


def _beside_peak(found: Measurement, peak: float | None, generation: str) -> Measurement:
    if peak is None or found.verdict:
        return found
    share, threshold = found.value / peak, thresholds()[found.what]
    verdict = _verdict(share, threshold)
    if verdict == "fail" and generation not in threshold.published:
        verdict = "warn"
    return found.judged(verdict, peak=peak, share=share)


def _verdict(share: float, threshold: Threshold) -> str:
    return "fail" if share < threshold.fail else "warn" if share < threshold.warn else ""


def _beside_median(found: Measurement, share: float | None) -> Measurement:
    if share is None:
        return found
    verdict = _verdict(share, thresholds()["outlier"])
    worse = "fail" if "fail" in (verdict, found.verdict) else "warn"
    return found.judged(worse, note=f"{share:.2f} of the median of all devices")


Place = tuple[str, int | None, int | None]  #: what, worker, device


def _outliers(parts: Sequence[WorkerFigures]) -> dict[Place, float]:
    """Return the devices that are slower than the others in every pass, and by how much."""
    found: dict[Place, float] = {}
    for what in ("matmul", "hbm"):
        passes: dict[Place, Sequence[float]] = {
            (what, part.worker, device): figures
            for part in parts
            if part.bench
            for device, figures in enumerate(part.bench.devices.get(what, ()))
        }
        found |= _slow(passes)
    return found


def _slow(passes: Mapping[Place, Sequence[float]]) -> dict[Place, float]:
    threshold, count = thresholds()["outlier"], min(map(len, passes.values()), default=0)
    if len(passes) < threshold.devices or count < 2:
        return {}
    changes = [1 - min(each) / max(each) if max(each) else 1.0 for each in passes.values()]
    unsteady = statistics.median(changes)
    shares: dict[Place, list[float]] = {place: [] for place in passes}
    for number in range(count):
        values = [each[number] for each in passes.values()]
        median = statistics.median(values)
        spread = _DEVIATION * statistics.median(abs(value - median) for value in values)
        for place, each in passes.items():
            off = median - each[number]
            outside = off > threshold.deviations * spread
            outside = outside and off > threshold.unsteadiness * unsteady * median
            shares[place].append(each[number] / median if outside and median else 1.0)
    return {place: max(each) for place, each in shares.items() if max(each) < threshold.warn}


def _soaks(parts: Iterable[WorkerFigures], stand_in: bool) -> Iterator[Measurement]:
    for part in parts:
        if part.soak:
            for device in range(min(map(len, part.soak.rates))):
                yield _soaked(part.worker, device, part.soak, stand_in)


def _link_healths(parts: Iterable[WorkerFigures]) -> Iterator[Measurement]:
    """Yield the worst score of each worker's links under a load, and which links have one."""
    for part in parts:
        scores: dict[str, int] = {}
        for line in part.soak.metrics.get("ici_link_health", ()) if part.soak else ():
            if match := _LINK_HEALTH.fullmatch(line):
                link = one_line(match["link"])
                scores[link] = max(int(match["score"]), scores.get(link, 0))
        if scores:
            bad = sorted((link for link in scores if scores[link]), key=lambda link: -scores[link])
            note = ", ".join(f"{link}: {scores[link]}" for link in bad[:_NAMED])
            worst = max(scores.values())
            found = Measurement("link-health", part.worker, None, worst, "of 10", note=note)
            yield found.judged(_verdict(1 - worst / 10, thresholds()["link-health"]))


def _soaked(worker: int, device: int, soak: Soak, stand_in: bool) -> Measurement:
    """Return the worst window of a device, of the median of its first minute."""
    rates = [window[device] for window in soak.rates]
    first = rates[: max(1, round(_FIRST_SECONDS / soak.window_seconds))]
    usual, worst = statistics.median(first), min(rates)
    place = f"window {rates.index(worst) + 1} of {len(rates)}"
    found = Measurement("soak", worker, device, worst, "TFLOP/s", note=place)
    if not stand_in and usual:
        share = worst / usual
        found = found.judged(_verdict(share, thresholds()["soak"]), peak=usual, share=share)
    counts = (
        (soak.wrong, "windows with wrong bits"),
        (soak.flipped, "words of memory that changed"),
    )
    for numbers, what in counts:
        if number := numbers[device] if device < len(numbers) else 0:
            found = found.judged("fail", note=f"{number} {what}; {found.note}")
    return found
