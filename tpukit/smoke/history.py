"""The smoke tests of a slice that ran from this machine, and how the newest differs.

A hint, as all that is kept here: everything works with the files deleted.
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

#: Runs of one name that are kept.
_KEPT = 50
#: A figure below this part of its own median before is named.
_SLOWER = 0.95
#: Figures of which less is better: how bad they are does not depend on the past.
_SCORES = ("link-health",)
#: One figure of a run, of all of its devices or links together: the middle one, or the slowest.
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
    """One smoke test; `time` is in seconds since the epoch, `created` tells slices apart."""

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
        """Return one value for all figures of a kind: of devices the median, else the slowest."""
        values = [each.value for each in self.figures if each.what == what]
        return _SUMMARIES[what](values) if values else None


@dataclass(frozen=True)
class Change(Documented):
    """A figure that is lower than it was on the same slice: `share` of its median before."""

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

    def record(self, found: Slice, report: SmokeReport) -> None:
        """Keep a run, where that can be done: a full disk ends no command."""
        run = KeptRun(
            time=round(self.clock.time(), 3),
            project=found.project,
            zone=found.zone,
            created=found.created,
            accelerator_type=found.accelerator_type,
            framework=report.framework,
            level=report.level,
            ok=report.ok,
            queued_resource=found.queued_resource,
            stand_in=bool(report.stand_in),
            error="; ".join(each.error for each in report.workers if each.error)[:400],
            figures=tuple(
                KeptFigure(what=e.what, place=_place(e), value=e.value, unit=e.unit, peak=e.peak)
                for e in report.measurements
            ),
        )
        runs = [*self.runs(), run][-_KEPT:]
        keep_json(self.path, {"v": 1, "runs": [each.model_dump() for each in runs]})

    def runs(self, zone: str = "") -> tuple[KeptRun, ...]:
        """Return the runs that can be read, of one zone or of all."""
        kept = recall_json(self.path).get("runs")
        found = [_read(each) for each in (kept if isinstance(kept, list) else [])]
        return tuple(each for each in found if each and zone in ("", each.zone))


def runs_of_multislice(
    folder: Path, clock: Clock, name: str, zone: str = ""
) -> dict[str, tuple[KeptRun, ...]]:
    """Return the runs on each slice of a queued resource, by the slice's name.

    `folder` has the file of each slice.
    """
    files = sorted(folder.glob("*.json"), key=lambda each: (len(each.stem), each.stem))
    every = {each.stem: History(each, clock).runs(zone) for each in files}
    own = {
        each: tuple(run for run in runs if run.queued_resource == name)
        for each, runs in every.items()
    }
    return {each: runs for each, runs in own.items() if runs}


def _place(found: Measurement) -> str:
    return f"{found.place}, {found.size >> 20} MiB" if found.size else found.place


def _read(document: object) -> KeptRun | None:
    try:
        return KeptRun.model_validate(document)
    except ValidationError:
        return None


def changes(runs: Sequence[KeptRun]) -> tuple[Change, ...]:
    """Return what is slower in the newest run than in the earlier ones on the same slice.

    Of CPU devices nothing is: they share processors with whatever else runs there.
    """
    *earlier, newest = runs
    if newest.stand_in:
        return ()
    slice_ = newest.project, newest.zone, newest.created
    same = [each for each in earlier if (each.project, each.zone, each.created) == slice_]
    return tuple(_changes(newest, same))


def _changes(newest: KeptRun, earlier: Iterable[KeptRun]) -> Iterable[Change]:
    before: dict[tuple[str, str], list[float]] = {}
    for run in earlier:
        for each in run.figures:
            before.setdefault((each.what, each.place), []).append(each.value)
    for each in newest.figures:
        if each.what in _SCORES:
            continue
        known = before.get((each.what, each.place))
        usual = statistics.median(known) if known else 0.0
        if usual and each.value / usual < _SLOWER:
            share = each.value / usual
            yield Change(each.what, each.place, each.value, each.unit, usual, share)
