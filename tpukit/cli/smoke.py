"""`tpukit smoke`: run a small computation on every device of every worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import CONNECT_SECONDS, Toolkit
from tpukit.cli.views import smoke_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotFound
from tpukit.models import Slice
from tpukit.remote.worker_files import venv_python
from tpukit.slices import naming

if TYPE_CHECKING:
    from tpukit.accelerators import AcceleratorType
    from tpukit.clock import Deadline
    from tpukit.provision.recipes import Recipe
    from tpukit.smoke.history import History, KeptRun
    from tpukit.smoke.runner import Load
    from tpukit.smoke.smoke_report import SmokeReport

_ONE = Fix(note="name one of its slices")
_MEASURING, _LONGEST, _SOAK_MINUTES = 2, 3, 10.0

Level = Annotated[
    int,
    Option(
        metavar="N",
        min=0,
        max=_LONGEST,
        help="0: chips and drivers. 1: exact results. 2: also speed. 3: also speed under load.",
    ),
]
Kept = Annotated[
    bool, Option("--history", help="Show this machine's stored results; test nothing.")
]
Picture = Annotated[
    str, Option(metavar="FILE", help="Draw the figures: .svg or .png. Needs tpukit[plot].")
]
Minutes = Annotated[
    float,
    Option(metavar="M", min=0.0, max=24 * 60.0, help="Minutes of load at level 3; 0 means 10."),
]


def smoke(
    toolkit: Toolkit,
    name: flag.Name,
    recipe: flag.Recipe = flag.DEFAULT_RECIPE,
    level: Level = 1,
    minutes: Minutes = 0.0,
    history: Kept = False,
    plot: Picture = "",
    timeout: flag.Timeout = "10m",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Compute on every device of every worker.

    It uses the provisioned interpreter. If a test fails, the exit status is 10. Level 1, which `up`
    runs, checks that every device computes the same exact bits. Level 0 only checks chips, drivers
    and the processes that hold them, and needs no framework. Level 2 measures devices, memory and
    links and compares them with the chip's published peak. Level 3 also keeps all devices busy for
    --minutes and shows the worst window.

    This machine stores every result, including those of up. --history shows the results of a name
    without testing again, and lists slower figures. --plot draws them, with the newest on top. The
    slices of a multislice are tested separately, at the same time, and have separate histories.

    Examples:
      tpukit smoke demo --with jax
      tpukit smoke demo --level 0
      tpukit smoke demo --level 2 --json
      tpukit smoke demo --level 3 --minutes 30
      tpukit smoke demo --history --plot demo.svg
    """
    from tpukit.smoke.history import changes
    from tpukit.smoke.plot import check_plot

    picture = Path(plot) if plot else None
    if picture:
        check_plot(picture)
    kept = toolkit.smoke_history(naming.check_name(name))
    if history:
        return _history(toolkit, kept, name, picture)
    if picture and level < _MEASURING:
        raise BadInput(f"level {level} has no figures to draw", fix=Fix(note="add --level 2"))
    from tpukit.provision.recipes import Recipe
    from tpukit.smoke.runner import Load, check_level

    toolkit = toolkit.by(route)
    chosen = Recipe.named(recipe, toolkit.own_recipes)
    load = Load(level, 60 * _soak_minutes(level, minutes))
    check_level(chosen, level)
    deadline = toolkit.deadline(flag.seconds(timeout) + load.soak_seconds)
    slices = toolkit.find_named(name, deadline)
    if picture and len(slices) > 1:
        raise _several(name)
    reports = _computed(toolkit, slices, chosen, load, deadline)
    if len(slices) > 1:
        places = [{"name": slice_.name, "zone": slice_.zone} for slice_ in slices]
        return smoke_views.of_slices(places, [smoke_views.smoke(report) for report in reports])
    runs = kept.runs(slices[0].zone)
    if picture:
        _draw(runs, picture, name)
    return smoke_views.smoke(reports[0], changes(runs) if runs else ())


def _computed(
    toolkit: Toolkit, slices: Sequence[Slice], recipe: Recipe, load: Load, deadline: Deadline
) -> Sequence[SmokeReport]:
    """Test the slices and store the reports; raise `SmokeFailed` if a test fails."""
    from tpukit.smoke.each_slice import smoke_each
    from tpukit.smoke.runner import ensure_computes

    accelerators = {slice_.name: _known(slice_, recipe) for slice_ in slices}
    patience = deadline.within(CONNECT_SECONDS).remaining()
    workers = {slice_.name: toolkit.workers(slice_, "all", patience) for slice_ in slices}
    stages = toolkit.stages
    stages.progress("smoke", f"computing on {sum(map(len, workers.values()))} workers")

    def test(slice_: Slice) -> SmokeReport:
        return ensure_computes(
            workers[slice_.name],
            accelerators[slice_.name],
            recipe,
            deadline=deadline,
            on_wait=lambda line: stages.say("smoke", line),
            load=load,
            on_report=lambda report: toolkit.keep_smoke(slice_, report),
        )

    return smoke_each(slices, test)


def _history(toolkit: Toolkit, kept: History, name: str, picture: Path | None) -> View:
    """Show the stored results of a slice or a multislice; raise `NotFound` if there are none."""
    from tpukit.smoke.history import changes, runs_of_multislice

    zone = toolkit.flags.zone
    if runs := kept.runs(zone):
        if picture:
            _draw(runs, picture, name)
        return smoke_views.smoke_history(runs, changes(runs))
    slices = runs_of_multislice(kept.path.parent, toolkit.clock, name, zone)
    if not slices:
        fix = Fix.command("tpukit", "smoke", name, "--level", "2")
        raise NotFound(f"this machine has no results of smoke tests of {name}", fix=fix)
    if picture:
        raise _several(name)
    views = [smoke_views.smoke_history(runs, changes(runs)) for runs in slices.values()]
    return smoke_views.of_slices([{"name": slice_} for slice_ in slices], views)


def _several(name: str) -> BadInput:
    return BadInput(f"{name} is a multislice; --plot draws only one slice", fix=_ONE)


def _draw(runs: Sequence[KeptRun], picture: Path, name: str) -> None:
    from tpukit.smoke.plot import plot

    measured = [run for run in runs if run.figures]
    if not measured:
        fix = Fix.command("tpukit", "smoke", name, "--level", "2")
        raise BadInput(f"no test of {name} has measured anything yet", fix=fix)
    kind = measured[-1].accelerator_type
    plot([run for run in measured if run.accelerator_type == kind], picture, f"{name}, {kind}")


def _soak_minutes(level: int, minutes: float) -> float:
    """Return the minutes of load at level 3, else 0; raise `BadInput` for other levels' minutes."""
    if math.isnan(minutes):
        raise BadInput("--minutes is not a number", fix=Fix(note="for example: --minutes 30"))
    if level == _LONGEST:
        return minutes or _SOAK_MINUTES
    if minutes:
        raise BadInput("--minutes needs --level 3", fix=Fix(note="add --level 3"))
    return 0.0


def _known(slice_: Slice, recipe: Recipe) -> AcceleratorType:
    """Return the slice's type; raise `BadInput` for a type that our table does not list."""
    from tpukit.accelerators import AcceleratorType, is_listed

    if is_listed(slice_.accelerator_type):
        return AcceleratorType.parse(slice_.accelerator_type)
    python = venv_python(recipe.name)
    raise BadInput(
        f"how many devices a {slice_.accelerator_type} has is unknown",
        fix=Fix(note=f"run your own program to count them, with {python}"),
    )
