"""`tpukit smoke`: a small computation on every device of every worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import CONNECT_SECONDS, Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.models import Slice
from tpukit.remote.worker_files import venv_python

if TYPE_CHECKING:
    from tpukit.accelerators import AcceleratorType
    from tpukit.provision.recipes import Recipe

_LONGEST, _SOAK_MINUTES = 3, 10.0

Level = Annotated[
    int,
    Option(
        metavar="N",
        min=1,
        max=_LONGEST,
        help="1: exact bits of every device. 2: figures beside the peak. 3: under load, too.",
    ),
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
    timeout: flag.Timeout = "10m",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Compute on every device of every worker.

    It uses the interpreter that was provisioned. A failure exits with 10. Level 1, the one of `up`,
    asks every device for the same exact bits. Level 2 measures devices, memory and links beside the
    chip's published peak; level 3 also keeps all devices busy for --minutes and shows the worst
    window.

    Examples:
      tpukit smoke demo --with jax
      tpukit smoke demo --level 2 --json
      tpukit smoke demo --level 3 --minutes 30
    """
    from tpukit.provision.recipes import Recipe
    from tpukit.smoke.runner import Load, check_level, ensure_computes

    toolkit = toolkit.by(route)
    chosen = Recipe.named(recipe)
    load = Load(level, 60 * _soak_minutes(level, minutes))
    check_level(chosen, level)
    deadline = toolkit.deadline(flag.seconds(timeout) + load.soak_seconds)
    found = toolkit.find(name, deadline)
    accelerator = _known(found, chosen)
    workers = toolkit.workers(found, "all", deadline.within(CONNECT_SECONDS).remaining())
    stages = toolkit.stages
    stages.progress("smoke", f"computing on {len(workers)} workers")
    report = ensure_computes(
        workers,
        accelerator,
        chosen,
        deadline=deadline,
        on_wait=lambda line: stages.say("smoke", line),
        load=load,
    )
    return views.smoke(report)


def _soak_minutes(level: int, minutes: float) -> float:
    """Return how long level 3 lasts; raise `BadInput` for another level that is to last."""
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
