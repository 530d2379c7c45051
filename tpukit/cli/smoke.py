"""`tpukit smoke`: a small computation on every device of every worker."""

from __future__ import annotations

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import CONNECT_SECONDS, Toolkit
from tpukit.console import View


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
    from tpukit.accelerators import AcceleratorType
    from tpukit.provision.recipes import Recipe
    from tpukit.smoke.runner import ensure_computes

    toolkit = toolkit.by(route)
    chosen = Recipe.named(recipe)
    deadline = toolkit.deadline(flag.seconds(timeout))
    found = toolkit.find(name, deadline)
    workers = toolkit.workers(found, "all", deadline.within(CONNECT_SECONDS).remaining())
    accelerator = AcceleratorType.parse(found.accelerator_type)
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
