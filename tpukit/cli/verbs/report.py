"""`tpukit report`: write one HTML page about a slice, its checks, environments and runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.smoke import smoke
from tpukit.cli.views import job_views, provision_views, slice_views, smoke_views
from tpukit.console import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpukit.models import Slice
    from tpukit.report.page import Section, Span
    from tpukit.ssh.worker import RemoteWorker
    from tpukit.up import UpReport

File = Annotated[str, Option("--to", metavar="FILE", help="The page; default: NAME.html.")]


@flag.connecting
def report(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    to: File = "",
    measure: flag.Measure = False,
    recipe: flag.Recipe = flag.DEFAULT_RECIPE,
    timeout: flag.Timeout = "60s",
) -> View:
    """Write one HTML page about a slice, its checks, environments and runs.

    The page needs no other file. It has the slice's fields, the findings of doctor, the applied
    recipes and steps with their versions, and all runs. up --report FILE writes a page with a
    timeline and the smoke test, and with --measure the figures.

    Examples:
      tpukit report demo
      tpukit report demo --measure --to ~/reports/demo.html
    """
    from tpukit.cli.verbs.doctor import shown, slice_findings
    from tpukit.report.page import check_page

    path = check_page(to or f"{name}.html")
    patience = flag.seconds(timeout)
    slice_ = toolkit.slices.find(name, toolkit.deadline(patience))
    findings = slice_findings(toolkit, slice_, patience)
    sections = [_slice(toolkit, slice_), _section("Checks", shown(findings, lambda fix: fix))]
    if slice_.ready:
        workers = toolkit.reach.workers(slice_, "all", patience)
        sections += _work(toolkit, workers, patience)
    if measure:
        figures = smoke(toolkit, name, recipe, level=2)
        sections.append(_section("Figures", figures))
    return _written(toolkit, path, name, sections)


def write_up(
    toolkit: Toolkit, path: Path, done: UpReport, stages: Sequence[tuple[str, float, float]]
) -> None:
    """Write the page about a main job that has ended well.

    Each stage has its name, start and end, in seconds since the job began.
    """
    from tpukit.report.page import Span

    tested = smoke_views.smoke(done.smoke)
    sections = [
        _slice(toolkit, done.slice),
        _section("Figures" if done.smoke.measurements else "Smoke test", tested),
        _section("Provisioning", provision_views.provision(done.provision)),
    ]
    _written(toolkit, path, done.slice.name, sections, [Span(*stage) for stage in stages])


def _written(
    toolkit: Toolkit,
    path: Path,
    name: str,
    sections: Sequence[Section],
    timeline: Sequence[Span] = (),
) -> View:
    from tpukit import __version__
    from tpukit.report.page import page, write_page

    now = time.strftime("%Y-%m-%d %H:%M", time.gmtime(toolkit.cloud.provider.now()))
    made = f"{now} UTC, project {toolkit.cloud.project}, tpukit {__version__}"
    write_page(path, page(f"TPU slice {name}", made, sections, timeline))
    return View({"report": str(path)}, rows=[[str(path)]])


def _slice(toolkit: Toolkit, slice_: Slice) -> Section:
    cloud = toolkit.cloud
    return _section("Slice", slice_views.described(slice_, cloud.provider.now(), cloud.rates))


def _work(toolkit: Toolkit, workers: list[RemoteWorker], patience: float) -> list[Section]:
    from tpukit.jobs import runs
    from tpukit.provision.provisioning import status_all

    states = runs.states(workers, toolkit.clock, patience=patience)
    status = status_all(workers, deadline=toolkit.deadline(patience))
    return [
        _section("Environments and steps", provision_views.provision_status(status)),
        _section("Runs", job_views.jobs(states, "", toolkit.clock.time())),
    ]


def _section(title: str, view: View) -> Section:
    from tpukit.report.page import Section

    return Section(title, view.columns, view.rows, view.warnings)
