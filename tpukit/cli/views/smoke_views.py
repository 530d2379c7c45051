"""Smoke tests and their measurements, as tables and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tpukit.console import View

if TYPE_CHECKING:
    from tpukit.smoke.smoke_report import SmokeReport, WorkerSmokeReport


_COLUMNS = ("WORKER", "DEVICES", "PLATFORM", "FRAMEWORK", "ALL DEVICES", "RESULT", "NOTE")


def smoke(report: SmokeReport) -> View:
    """Show a smoke test, one worker or one figure in a row, with its notes as warnings."""
    if report.measurements:
        return _measurements(report)
    rows = [_smoke_row(worker, report.stand_in) for worker in report.workers]
    return View({"smoke": report.document()}, _COLUMNS, rows, warnings=report.notes)


def of_slices(places: Sequence[Mapping[str, str]], views: Sequence[View]) -> View:
    """Show the views of several slices, as one.

    Each place has the slice's `name`.
    """
    shown = list(zip(places, views, strict=True))
    return View(
        {"slices": [{**place, **view.document} for place, view in shown]},
        ("SLICE", *views[0].columns),
        [[place["name"], *row] for place, view in shown for row in view.rows],
        warnings=[f"{place['name']}: {line}" for place, view in shown for line in view.warnings],
    )


def _smoke_row(worker: WorkerSmokeReport, stand_in: str) -> list[object]:
    return [
        worker.worker if worker.chip is None else f"{worker.worker} chip {worker.chip}",
        f"{worker.devices} of {worker.devices_expected} devices",
        worker.platform,
        f"{worker.framework} {worker.version}",
        f"{worker.global_devices} of {worker.global_devices_expected}",
        "passed" if worker.ok else worker.error,
        stand_in,
    ]


def _measurements(report: SmokeReport) -> View:
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
    warnings = (*report.notes, *stand_in)
    return View({"smoke": report.document()}, columns, rows, warnings=warnings)
