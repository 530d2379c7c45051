"""The measurements of levels 2 and 3, compared with published peaks and with other devices."""

from __future__ import annotations

import math
import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Annotated

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

#: The figures of each device.
_OF_A_DEVICE = ("matmul", "hbm", "host-to-device", "device-to-host")
#: The first seconds of a load. Their median is the device's usual speed.
_FIRST_SECONDS = 60.0
_UNITS = {"matmul": "TFLOP/s"}
_DEVIATION = 1.4826
#: libtpu's score of a link, from 0 (healthy): `tray1.chip3.ici0.int: 0`.
_LINK_HEALTH = re.compile(r"(?P<link>.+?):\s*(?P<score>[0-9]{1,3})")
#: The note on an impossible figure.
TOO_FAST = "more than the chip can do: this measured something else"
#: The most links that a note names.
_NAMED = 8


class Bench(BaseModel):
    """The value of the program's `bench`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    devices: Annotated[dict[Name, PerDevice], Field(max_length=20)]
    right: Annotated[
        dict[Name, Annotated[tuple[bool, ...], Field(max_length=4096)]], Field(max_length=20)
    ]
    all_reduce: Annotated[tuple[tuple[int, Figure, bool], ...], Field(max_length=20)]
    links: Annotated[tuple[tuple[Index, Index, Figure, bool], ...], Field(max_length=100_000)]

    def is_of(self, devices: int) -> bool:
        """Return True if all figures of this number of devices and of the slice are there."""
        figures = [self.devices.get(what, ()) for what in _OF_A_DEVICE]
        return {*map(len, figures)} == {devices} and bool(self.all_reduce)


class Soak(BaseModel):
    """The value of the program's `soak`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    window_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    rates: Annotated[tuple[tuple[Figure, ...], ...], Field(min_length=1, max_length=100_000)]
    wrong: Annotated[tuple[Index, ...], Field(max_length=4096)]
    flipped: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=4096)]
    metrics: Annotated[dict[Name, tuple[Name, ...]], Field(max_length=20)]

    def is_of(self, devices: int) -> bool:
        """Return True if all rates and counts of this number of devices are there."""
        return {*map(len, (*self.rates, self.wrong, self.flipped))} == {devices}


@dataclass(frozen=True)
class WorkerFigures:
    """One worker's part of the measurements; `indices` are its devices' numbers in the slice."""

    worker: int
    indices: Sequence[int]
    bench: Bench | None
    soak: Soak | None


@dataclass(frozen=True)
class Threshold:
    """The parts of a peak or median below which a figure gets a warning, or fails.

    A figure below `floor` fails on every generation. A figure above `most` is impossible.
    """

    warn: float
    fail: float
    sources: Sequence[str]
    published: Sequence[str] = ()
    floor: float = 0.0
    most: float = math.inf
    devices: int = 0
    deviations: float = 0.0
    unsteadiness: float = 0.0


# The package's data never changes while a process runs.
@cache
def thresholds() -> Mapping[str, Threshold]:
    """Return the thresholds of each figure; thresholds.toml explains them."""
    text = files("tpukit.smoke").joinpath("thresholds.toml").read_text(encoding="utf-8")
    return {name: Threshold(**table) for name, table in tomllib.loads(text).items()}


def measurements(
    parts: Sequence[WorkerFigures], accelerator: AcceleratorType, stand_in: bool
) -> tuple[Measurement, ...]:
    """Return all figures of a slice with verdicts; with `stand_in` devices there are no peaks."""
    peaks = {} if stand_in else _peaks(accelerator)
    slow = _outliers(parts)
    compared = []
    for figure in (*_devices(parts), *_all_reduces(parts), *_links(parts)):
        published = peaks.get(figure.what, ())
        judged = _compared_with_peaks(figure, published, accelerator.facts.name)
        share = slow.get((figure.what, figure.worker, figure.device))
        compared.append(_compared_with_median(judged, share))
    return (*compared, *_soaks(parts, stand_in), *_link_healths(parts))


def _peaks(accelerator: AcceleratorType) -> dict[str, tuple[float, ...]]:
    """Return the published peaks of a device by figure; an unpublished one has an empty tuple."""
    facts, devices = accelerator.facts, accelerator.facts.devices_per_chip
    link = facts.ici_gbytes_per_second_per_link
    peaks = {
        "matmul": (facts.peak_bf16_tflops_per_chip / devices,),
        "hbm": tuple(peak / devices for peak in facts.hbm_gbytes_per_second_per_chip),
        "all-reduce": (accelerator.links_per_chip * link,),
        "link": (link,),
    }
    return {what: tuple(filter(None, published)) for what, published in peaks.items()}


def _devices(parts: Sequence[WorkerFigures]) -> Iterator[Measurement]:
    """Yield the best pass of each device."""
    for part in parts:
        for what, figures in (part.bench.devices if part.bench else {}).items():
            right = part.bench.right.get(what, ()) if part.bench else ()
            for device, passes in enumerate(figures):
                value = max(passes, default=0.0)
                figure = Measurement(what, part.worker, device, value, _UNITS.get(what, "GB/s"))
                yield _checked(figure, device < len(right) and right[device])


def _checked(figure: Measurement, right: bool) -> Measurement:
    """Return a figure, as failed if its computation gave wrong values."""
    wrong = {"link": "the received values are wrong"}.get(figure.what, "its values are wrong")
    return figure if right else replace(figure, verdict="fail", note=wrong)


def _all_reduces(parts: Sequence[WorkerFigures]) -> Iterator[Measurement]:
    """Yield one figure for each size: the slowest worker's, as all took part in one exchange."""
    slowest: dict[int, tuple[float, bool]] = {}
    for size, value, right in (
        row for part in parts if part.bench for row in part.bench.all_reduce
    ):
        least, held = slowest.get(size, (value, True))
        slowest[size] = min(value, least), right and held
    for size, (value, right) in slowest.items():
        yield _checked(Measurement("all-reduce", None, None, value, "GB/s", size=size), right)


def _links(parts: Sequence[WorkerFigures]) -> Iterator[Measurement]:
    owners = {n: (part.worker, at) for part in parts for at, n in enumerate(part.indices)}
    slowest: dict[tuple[int, int], tuple[float, bool]] = {}
    for one, other, value, right in (row for p in parts if p.bench for row in p.bench.links):
        least, held = slowest.get((one, other), (value, True))
        slowest[one, other] = min(value, least), right and held
    for (one, other), (value, right) in sorted(slowest.items()):
        worker, device = owners.get(one, (None, one))
        to_worker, to_device = owners.get(other, (None, other))
        figure = Measurement("link", worker, device, value, "GB/s")
        yield _checked(replace(figure, to_worker=to_worker, to_device=to_device), right)


def _compared_with_peaks(
    figure: Measurement, peaks: Sequence[float], generation: str
) -> Measurement:
    """Return a figure with its verdict: low by the lowest peak, or impossible by the highest."""
    if not peaks or figure.verdict:
        return figure
    threshold, share = thresholds()[figure.what], figure.value / min(peaks)
    verdict = _verdict(share, threshold)
    if verdict == "fail" and share >= threshold.floor and generation not in threshold.published:
        verdict = "warn"
    note = figure.note
    if figure.value > threshold.most * max(peaks):
        verdict, note = "fail", TOO_FAST
    return replace(figure, verdict=verdict, peak=min(peaks), share=share, note=note)


def _verdict(share: float, threshold: Threshold) -> str:
    return "fail" if share < threshold.fail else "warn" if share < threshold.warn else ""


def _compared_with_median(figure: Measurement, share: float | None) -> Measurement:
    if share is None:
        return figure
    verdict = _verdict(share, thresholds()["outlier"])
    worse = "fail" if "fail" in (verdict, figure.verdict) else "warn"
    return replace(figure, verdict=worse, note=f"{share:.2f} of the median of all devices")


Place = tuple[str, int | None, int | None]  #: what, worker, device


def _outliers(parts: Sequence[WorkerFigures]) -> dict[Place, float]:
    """Return the devices that are slow in every pass, with their best part of the median."""
    slow: dict[Place, float] = {}
    for what in ("matmul", "hbm"):
        passes: dict[Place, Sequence[float]] = {
            (what, part.worker, device): figures
            for part in parts
            if part.bench
            for device, figures in enumerate(part.bench.devices.get(what, ()))
        }
        slow |= _slow(passes)
    return slow


def _slow(passes: Mapping[Place, Sequence[float]]) -> dict[Place, float]:
    threshold, count = thresholds()["outlier"], min(map(len, passes.values()), default=0)
    if len(passes) < threshold.devices or count < 2:
        return {}
    changes = [1 - min(own) / max(own) if max(own) else 1.0 for own in passes.values()]
    unsteady = statistics.median(changes)
    shares: dict[Place, list[float]] = {place: [] for place in passes}
    for number in range(count):
        values = {place: own[number] for place, own in passes.items()}
        median = statistics.median(values.values())
        spread = _DEVIATION * statistics.median(abs(value - median) for value in values.values())
        for place, value in values.items():
            off = median - value
            outside = off > threshold.deviations * spread
            outside = outside and off > threshold.unsteadiness * unsteady * median
            shares[place].append(value / median if outside and median else 1.0)
    best = {place: max(own) for place, own in shares.items()}
    return {place: share for place, share in best.items() if share < threshold.warn}


def _soaks(parts: Iterable[WorkerFigures], stand_in: bool) -> Iterator[Measurement]:
    for part in parts:
        if part.soak:
            for device in range(len(part.soak.rates[0])):
                yield _soaked(part.worker, device, part.soak, stand_in)


def _link_healths(parts: Iterable[WorkerFigures]) -> Iterator[Measurement]:
    """Yield the worst score of each worker's links under load; the note names the bad links."""
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
            figure = Measurement("link-health", part.worker, None, worst, "of 10", note=note)
            yield replace(figure, verdict=_verdict(1 - worst / 10, thresholds()["link-health"]))


def _soaked(worker: int, device: int, soak: Soak, stand_in: bool) -> Measurement:
    """Return the worst window of a device, compared with the median of its first minute."""
    rates = [window[device] for window in soak.rates]
    first = rates[: max(1, round(_FIRST_SECONDS / soak.window_seconds))]
    usual, worst = statistics.median(first), min(rates)
    place = f"window {rates.index(worst) + 1} of {len(rates)}"
    figure = Measurement("soak", worker, device, worst, "TFLOP/s", note=place)
    if not stand_in and usual:
        share = worst / usual
        verdict = _verdict(share, thresholds()["soak"])
        figure = replace(figure, verdict=verdict, peak=usual, share=share)
    counts = (
        (soak.wrong, "windows with wrong bits"),
        (soak.flipped, "words of memory that changed"),
    )
    for numbers, what in counts:
        if number := numbers[device]:
            figure = replace(figure, verdict="fail", note=f"{number} {what}; {figure.note}")
    return figure
