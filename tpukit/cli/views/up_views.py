"""The main job as a table and a document."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpukit.cli.views import slice_views
from tpukit.cli.views.rule_views import with_exposing
from tpukit.cli.views.smoke_views import smoke
from tpukit.console import View
from tpukit.errors import Fix
from tpukit.slices.refusals import removals

if TYPE_CHECKING:
    from tpukit.jobs.guard import GuardReport
    from tpukit.up import UpReport


def up(report: UpReport, bills: bool) -> View:
    """Show the smoke test of the slice, one worker in a row."""
    name, until = report.slice.name, f"until then it {'bills' if bills else 'stays'}"
    shell = Fix.command("tpukit", "ssh", name, "--with", report.provision.recipe)
    program = "pushes this folder, and runs the program there on every worker"
    train = Fix.command("tpukit", "train", name, "--", "python", "train.py", note=program)
    delete = Fix.command("tpukit", "delete", name, note=until)
    claim = slice_views.claims([report.slice])
    after = (*claim, shell, train, delete, *removals(report.slice, report.refusals))
    shown = replace(smoke(report.smoke), next=after)
    project = report.slice.network_project or report.slice.project
    shown = with_exposing(shown, report.exposing, project)
    warnings = (*shown.warnings, *slice_views.unhealthy(report.slice), *_unguarded(report.guard))
    return replace(shown, document=report.document(), warnings=warnings)


def _unguarded(guard: GuardReport | None) -> list[str]:
    """Return a warning if the guard of a slice is missing or limited."""
    if guard and not guard.kept_by:
        return [f"the slice does not end by itself: {guard.summary}; tpukit reap ends it"]
    if guard and not guard.sees_all:
        return ["the guard sees only your own use of the devices"]
    return []
