"""`tpukit smoke`: run a small computation on every device of every worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.toolkit.reach import CONNECT_SECONDS
from tpukit.cli.views import smoke_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.models import Slice
from tpukit.ssh.worker_files import venv_python
from tpukit.text import counted

if TYPE_CHECKING:
    from tpukit.accelerators import AcceleratorType
    from tpukit.clock import Deadline
    from tpukit.provision.recipes import Recipe
    from tpukit.smoke.runner import Load
    from tpukit.smoke.smoke_report import SmokeReport

_LONGEST, _SOAK_MINUTES = 3, 10.0

Level = Annotated[
    int,
    Option(
        metavar="N",
        min=0,
        max=_LONGEST,
        help="0: chips and drivers. 1: exact results. 2: also speed. 3: also speed under load.",
    ),
]
Minutes = Annotated[
    float,
    Option(
        metavar="M",
        min=0.0,
        max=24 * 60.0,
        help="Minutes of load at level 3; default: 10.",
        show_default=False,
    ),
]

PerChip = Annotated[bool, Option("--per-chip", help="Compute on each chip in its own process.")]


@flag.connecting
def smoke(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    recipe: flag.Recipe = flag.DEFAULT_RECIPE,
    level: Level = 1,
    minutes: Minutes = 0.0,
    per_chip: PerChip = False,
    timeout: flag.Timeout = "10m",
) -> View:
    """Compute on every device of every worker.

    It uses the provisioned interpreter. If a test fails, the exit status is 10. Level 1, which `up`
    runs, checks that every device computes the same exact bits. Level 0 only checks chips, drivers
    and the processes that hold them, and needs no framework. Level 2 measures devices, memory and
    links and compares them with the chip's published peak. Level 3 also keeps all devices busy for
    --minutes and shows the worst window.

    --per-chip proves that chips can be used separately, as by `run --per-chip`: a process for each
    chip finds exactly that chip's devices and computes on them, all at the same time.

    The slices of a multislice are tested separately, at the same time.

    Examples:
      tpukit smoke demo --with jax
      tpukit smoke demo --level 0
      tpukit smoke demo --level 2 --json
      tpukit smoke demo --level 3 --minutes 30
      tpukit smoke demo --per-chip
    """
    from tpukit.provision.recipes import Recipe
    from tpukit.smoke.runner import Load, check_level

    chosen = Recipe.named(recipe, toolkit.project_files.recipes)
    load = Load(level, 60 * _soak_minutes(level, minutes), per_chip)
    if per_chip and level != 1:
        raise BadInput("--per-chip needs level 1", fix=Fix(note="leave out --level"))
    check_level(chosen, level)
    deadline = toolkit.deadline(flag.seconds(timeout) + load.soak_seconds)
    slices = toolkit.slices.find_named(name, deadline)
    reports = _computed(toolkit, slices, chosen, load, deadline)
    if len(slices) > 1:
        places = [{"name": slice_.name, "zone": slice_.zone} for slice_ in slices]
        return smoke_views.of_slices(places, [smoke_views.smoke(report) for report in reports])
    return smoke_views.smoke(reports[0])


def _computed(
    toolkit: Toolkit, slices: Sequence[Slice], recipe: Recipe, load: Load, deadline: Deadline
) -> Sequence[SmokeReport]:
    """Test the slices; raise `SmokeFailed` if a test fails."""
    from tpukit.smoke.each_slice import smoke_each
    from tpukit.smoke.runner import ensure_computes

    accelerators = {slice_.name: _known(slice_, recipe) for slice_ in slices}
    patience = deadline.within(CONNECT_SECONDS).remaining()
    workers = {
        slice_.name: toolkit.reach.workers(slice_, "all", patience, until=deadline)
        for slice_ in slices
    }
    stages = toolkit.display.stages
    stages.progress("smoke", f"computing on {counted(sum(map(len, workers.values())), 'worker')}")

    def test(slice_: Slice) -> SmokeReport:
        return ensure_computes(
            workers[slice_.name],
            accelerators[slice_.name],
            recipe,
            deadline=deadline,
            on_wait=lambda line: stages.say("smoke", line),
            load=load,
        )

    return smoke_each(slices, test)


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
