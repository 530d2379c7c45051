"""`tpukit smoke`: a small computation on every device of every worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def smoke(
    toolkit: Toolkit,
    name: flag.Name,
    recipe: flag.Recipe = flag.DEFAULT_RECIPE,
    timeout: flag.Timeout = "10m",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Compute on every device of every worker.

    It uses the interpreter that was provisioned. A failure exits with 10.

    Example:
      tpukit smoke demo --with jax
    """
    from tpukit.provision.recipes import Recipe
    from tpukit.smoke.runner import ensure_computes

    toolkit = toolkit.by(route)
    chosen = Recipe.named(recipe)
    deadline = toolkit.deadline(flag.seconds(timeout))
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
    )
    return views.smoke(report)


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
