"""The earlier smoke tests of a slice from this machine, compared with the newest.

Like all local files this is a hint: tpukit works without it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpukit.clock import Clock
from tpukit.models import Documented, Slice
from tpukit.paths import keep_json, recall_json
from tpukit.smoke.smoke_report import Measurement, SmokeReport

#: The number of runs to keep for one slice name.
_KEPT = 50
#: A figure is reported if it is below this part of its earlier median.
_SLOWER = 0.95
#: Scores, which are lower if better and are not compared with earlier runs.
_SCORES = ("link-health",)
#: The summary of a figure over all devices or links of a run: the median or the slowest.
_SUMMARIES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "matmul": statistics.median,
    "hbm": statistics.median,
    "all-reduce": min,
    "link": min,
}


class KeptFigure(BaseModel):
    """One measurement of a run."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    what: str
    place: str
    value: Annotated[float, Field(allow_inf_nan=False)]
    unit: str
    peak: float | None = None


class KeptRun(BaseModel):
    """One smoke test; `time` is in seconds since the epoch, `created` distinguishes slices."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: float
    project: str
    zone: str
    created: str
    accelerator_type: str
    framework: str
    level: int
    ok: bool
    queued_resource: str = ""
    error: str = ""
    stand_in: bool = False
    figures: tuple[KeptFigure, ...] = ()

    def summary(self, what: str) -> float | None:
        """Return the summary of all figures `what` (see `_SUMMARIES`), or None without figures."""
        values = [figure.value for figure in self.figures if figure.what == what]
        return _SUMMARIES[what](values) if values else None


@dataclass(frozen=True)
class Change(Documented):
    """A figure that has become lower on the same slice.

    `before` is the median of its earlier values, and `share` is `value / before`.
    """

    what: str
    place: str
    value: float
    unit: str
    before: float
    share: float


@dataclass(frozen=True)
class History:
    """The runs on slices of one name, the oldest first."""

    path: Path
    clock: Clock

    def record(self, slice_: Slice, report: SmokeReport) -> None:
        """Keep a run; a full disk is ignored."""
        run = KeptRun(
            time=round(self.clock.time(), 3),
            project=slice_.project,
            zone=slice_.zone,
            created=slice_.created,
            accelerator_type=slice_.accelerator_type,
            framework=report.framework,
            level=report.level,
            ok=report.ok,
            queued_resource=slice_.queued_resource,
            stand_in=bool(report.stand_in),
            error="; ".join(worker.error for worker in report.workers if worker.error)[:400],
            figures=tuple(map(_figure, report.measurements)),
        )
        runs = [*self.runs(), run][-_KEPT:]
        keep_json(self.path, {"v": 1, "runs": [run.model_dump() for run in runs]})

    def runs(self, zone: str = "") -> tuple[KeptRun, ...]:
        """Return the readable runs, of one zone or of all zones."""
        kept = recall_json(self.path).get("runs")
        runs = map(_read, kept if isinstance(kept, list) else [])
        return tuple(run for run in runs if run and zone in ("", run.zone))


def runs_of_multislice(
    folder: Path, clock: Clock, name: str, zone: str = ""
) -> dict[str, tuple[KeptRun, ...]]:
    """Return the runs on each slice of a queued resource, by slice name.

    `folder` has one file for each slice.
    """
    runs_by_slice = {}
    for file in sorted(folder.glob("*.json"), key=lambda file: (len(file.stem), file.stem)):
        runs = History(file, clock).runs(zone)
        if own := tuple(run for run in runs if run.queued_resource == name):
            runs_by_slice[file.stem] = own
    return runs_by_slice


def _figure(measured: Measurement) -> KeptFigure:
    size = f", {measured.size >> 20} MiB" if measured.size else ""
    return KeptFigure(
        what=measured.what,
        place=f"{measured.place}{size}",
        value=measured.value,
        unit=measured.unit,
        peak=measured.peak,
    )


def _read(document: object) -> KeptRun | None:
    try:
        return KeptRun.model_validate(document)
    except ValidationError:
        return None


def changes(runs: Sequence[KeptRun]) -> tuple[Change, ...]:
    """Return the figures that are slower in the newest run than in earlier runs on the same slice.

    There are none for CPU devices, because they share processors with other programs.
    """
    *earlier, newest = runs
    if newest.stand_in:
        return ()
    slice_ = newest.project, newest.zone, newest.created
    same = [run for run in earlier if (run.project, run.zone, run.created) == slice_]
    return tuple(_changes(newest, same))


def _changes(newest: KeptRun, earlier: Iterable[KeptRun]) -> Iterable[Change]:
    before: dict[tuple[str, str], list[float]] = {}
    for run in earlier:
        for figure in run.figures:
            before.setdefault((figure.what, figure.place), []).append(figure.value)
    for figure in newest.figures:
        if figure.what in _SCORES:
            continue
        known = before.get((figure.what, figure.place))
        usual = statistics.median(known) if known else 0.0
        if usual and figure.value / usual < _SLOWER:
            share = figure.value / usual
            yield Change(figure.what, figure.place, figure.value, figure.unit, usual, share)
