"""Smoke tests and their measurements, as tables and documents."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tpukit.console import View
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.smoke.history import Change, KeptRun
    from tpukit.smoke.smoke_report import SmokeReport, WorkerSmokeReport


_COLUMNS = ("WORKER", "DEVICES", "PLATFORM", "FRAMEWORK", "ALL DEVICES", "RESULT", "NOTE")


def smoke(report: SmokeReport, slower: Sequence[Change] = ()) -> View:
    """Show a smoke test, one worker or one figure in a row, with its notes as warnings."""
    if report.measurements:
        return _measurements(report, slower)
    rows = [_smoke_row(worker, report.stand_in) for worker in report.workers]
    return View({"smoke": report.document()}, _COLUMNS, rows, warnings=report.notes)


def of_slices(places: Sequence[Mapping[str, str]], views: Sequence[View]) -> View:
    """Show the views of several slices, from `smoke` or `smoke_history`, as one.

    Each place has the slice's `name`.
    """
    shown = list(zip(places, views, strict=True))
    return View(
        {"slices": [{**place, **view.document} for place, view in shown]},
        ("SLICE", *views[0].columns),
        [[place["name"], *row] for place, view in shown for row in view.rows],
        warnings=[f"{place['name']}: {line}" for place, view in shown for line in view.warnings],
    )


def smoke_history(runs: Sequence[KeptRun], slower: Sequence[Change]) -> View:
    """Show the kept smoke tests, one run in a row, with a warning for each slower figure."""
    rows: list[list[object]] = []
    for run in runs:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(run.time))
        figures = [run.summary(what) for what in ("matmul", "hbm", "all-reduce", "link")]
        shown = ["" if figure is None else f"{figure:.4g}" for figure in figures]
        result = "passed" if run.ok else one_line(run.error or "failed")
        rows.append(
            [when, run.zone, run.accelerator_type, run.framework, run.level, *shown, result]
        )
    names = ("MATMUL TFLOP/s", "HBM GB/s", "ALL-REDUCE GB/s", "SLOWEST LINK GB/s")
    columns = ("WHEN", "ZONE", "TYPE", "WITH", "LEVEL", *names, "RESULT")
    documents = [run.model_dump(mode="json") for run in runs]
    return View(
        {"runs": documents, "slower": [change.document() for change in slower]},
        columns,
        rows,
        warnings=[_slower(change) for change in slower],
    )


def _smoke_row(worker: WorkerSmokeReport, stand_in: str) -> list[object]:
    return [
        worker.worker,
        f"{worker.devices} of {worker.devices_expected} devices",
        worker.platform,
        f"{worker.framework} {worker.version}",
        f"{worker.global_devices} of {worker.global_devices_expected}",
        "passed" if worker.ok else worker.error,
        stand_in,
    ]


def _measurements(report: SmokeReport, slower: Sequence[Change]) -> View:
    stand_in = [f"{report.stand_in}: their figures have no peak"] if report.stand_in else []
    rows: list[list[object]] = []
    for figure in report.measurements:
        peak = "" if figure.peak is None else f"{figure.peak:.4g}"
        share = "" if figure.share is None else f"{figure.share:.0%}"
        size = "" if figure.size is None else f"{figure.size >> 20} MiB a device"
        notes = [text for text in (figure.verdict, size, figure.note) if text]
        value = f"{figure.value:.4g} {figure.unit}"
        rows.append([figure.what, figure.place, value, peak, share, "; ".join(notes)])
    columns = ("FIGURE", "OF", "MEASURED", "PEAK", "SHARE", "NOTE")
    warnings = (*report.notes, *map(_slower, slower), *stand_in)
    return View({"smoke": report.document()}, columns, rows, warnings=warnings)


def _slower(change: Change) -> str:
    share = f"{change.share:.2f} of its median before, {change.before:.4g}"
    return f"{change.place}: {change.what} {change.value:.4g} {change.unit}, {share}"
