"""`tpukit provision`: apply a recipe to every worker of a slice."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.requirement_flags import NO_REQUIREMENTS, RequirementFlags, on_top
from tpukit.cli.stages import job_progress
from tpukit.cli.toolkit import CONNECT_SECONDS, Toolkit
from tpukit.console import View

RecipeName = Annotated[str, Argument(metavar="RECIPE", help=flag.RECIPES)]


def provision(
    toolkit: Toolkit,
    name: flag.Name,
    recipe: RecipeName = flag.DEFAULT_RECIPE,
    flags: RequirementFlags = NO_REQUIREMENTS,
    timeout: flag.Timeout = "30m",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Install a framework on every worker.

    A second run changes nothing.

    Examples:
      tpukit provision demo jax
      tpukit provision demo torch_xla --requirements requirements.txt
    """
    from tpukit.provision.apply import provision as apply_recipe
    from tpukit.provision.apply import require_provisioned
    from tpukit.provision.recipes import Recipe

    toolkit = toolkit.by(route)
    chosen = Recipe.named(recipe)
    requirements = on_top(flags, [chosen], toolkit.environ)
    deadline = toolkit.deadline(flag.seconds(timeout))
    patience = deadline.within(CONNECT_SECONDS).remaining()
    stages = toolkit.job_stages(name)
    report = apply_recipe(
        toolkit.workers(name, "all", patience),
        chosen,
        requirements=requirements,
        deadline=deadline,
        on_event=job_progress(stages).on_provision,
    )
    result = views.provision(require_provisioned(report))
    stages.done("provision", f"{report.changes} changes on {len(report.workers)} workers")
    return result
