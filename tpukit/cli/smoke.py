"""`tpukit smoke`: a small computation on every device of every worker."""

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
        help="0: chips are there. 1: exact bits. 2: figures beside the peak. 3: under load, too.",
    ),
]
Kept = Annotated[
    bool, Option("--history", help="Show the results that are kept here; test nothing.")
]
Picture = Annotated[
    str, Option(metavar="FILE", help="Draw the figures: .svg or .png. Needs tpukit[plot].")
]
Minutes = Annotated[
    float,
    Option(metavar="M", min=0.0, max=24 * 60.0, help="How long the load of level 3 lasts; 0: 10."),
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

    It uses the interpreter that was provisioned. A failure exits with 10. Level 1, the one of `up`,
    asks every device for the same exact bits. Level 0 looks for chips, drivers and who holds them,
    and needs no framework. Level 2 measures devices, memory and links beside the
    chip's published peak; level 3 also keeps all devices busy for --minutes and shows the worst
    window.

    Every result, also of up, is kept on this machine: --history shows those of a name without
    testing again, and what is slower than it was. --plot draws them, the newest on top. Of a
    multislice every slice is tested by itself, at the same time, and has a history of its own.

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
        places = [{"name": each.name, "zone": each.zone} for each in slices]
        return smoke_views.of_slices(places, [smoke_views.smoke(each) for each in reports])
    runs = kept.runs(slices[0].zone)
    if picture:
        _draw(runs, picture, name)
    return smoke_views.smoke(reports[0], changes(runs) if runs else ())


def _computed(
    toolkit: Toolkit, slices: Sequence[Slice], recipe: Recipe, load: Load, deadline: Deadline
) -> Sequence[SmokeReport]:
    """Return what each slice has computed, which is kept; raise `SmokeFailed` where one did not."""
    from tpukit.smoke.each_slice import smoke_each
    from tpukit.smoke.runner import ensure_computes

    accelerators = {each.name: _known(each, recipe) for each in slices}
    patience = deadline.within(CONNECT_SECONDS).remaining()
    workers = {each.name: toolkit.workers(each, "all", patience) for each in slices}
    stages = toolkit.stages
    stages.progress("smoke", f"computing on {sum(map(len, workers.values()))} workers")

    def test(found: Slice) -> SmokeReport:
        return ensure_computes(
            workers[found.name],
            accelerators[found.name],
            recipe,
            deadline=deadline,
            on_wait=lambda line: stages.say("smoke", line),
            load=load,
            on_report=lambda each: toolkit.keep_smoke(found, each),
        )

    return smoke_each(slices, test)


def _history(toolkit: Toolkit, kept: History, name: str, picture: Path | None) -> View:
    """Show what is kept of a slice or a multislice; raise `NotFound` where it is nothing."""
    from tpukit.smoke.history import changes, runs_of_multislice

    zone = toolkit.flags.zone
    if runs := kept.runs(zone):
        if picture:
            _draw(runs, picture, name)
        return smoke_views.smoke_history(runs, changes(runs))
    slices = runs_of_multislice(kept.path.parent, toolkit.clock, name, zone)
    if not slices:
        fix = Fix.command("tpukit", "smoke", name, "--level", "2")
        raise NotFound(f"no smoke test of {name} was kept on this machine", fix=fix)
    if picture:
        raise _several(name)
    views = [smoke_views.smoke_history(runs, changes(runs)) for runs in slices.values()]
    return smoke_views.of_slices([{"name": each} for each in slices], views)


def _several(name: str) -> BadInput:
    return BadInput(f"{name} is a multislice: a picture is of one slice", fix=_ONE)


def _draw(runs: Sequence[KeptRun], picture: Path, name: str) -> None:
    from tpukit.smoke.plot import plot

    measured = [each for each in runs if each.figures]
    if not measured:
        fix = Fix.command("tpukit", "smoke", name, "--level", "2")
        raise BadInput(f"nothing was measured on {name} yet", fix=fix)
    kind = measured[-1].accelerator_type
    plot([run for run in measured if run.accelerator_type == kind], picture, f"{name}, {kind}")


def _soak_minutes(level: int, minutes: float) -> float:
    """Return how long level 3 lasts; raise `BadInput` for another level that is to last."""
    if math.isnan(minutes):
        raise BadInput("--minutes is not a number", fix=Fix(note="for example: --minutes 30"))
    if level == _LONGEST:
        return minutes or _SOAK_MINUTES
    if minutes:
        raise BadInput("--minutes is of --level 3", fix=Fix(note="add --level 3"))
    return 0.0


def _known(found: Slice, recipe: Recipe) -> AcceleratorType:
    """Return the slice's type; raise `BadInput` for one of `create --allow-unlisted-type`."""
    from tpukit.accelerators import AcceleratorType, is_listed

    if is_listed(found.accelerator_type):
        return AcceleratorType.parse(found.accelerator_type)
    python = venv_python(recipe.name)
    raise BadInput(
        f"how many devices a {found.accelerator_type} has is not known",
        fix=Fix(note=f"let a program of your own count them: run it with {python}"),
    )
