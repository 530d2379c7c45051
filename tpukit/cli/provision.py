"""`tpukit provision`: apply a recipe to every worker of a slice."""

from __future__ import annotations

from typing import Annotated

import typer

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.narration import narrate_steps
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="jax or torch_xla.")]


def provision(
    toolkit: Toolkit,
    name: flag.Name,
    recipe: RecipeName = "jax",
    requirements: flag.Requirements = "",
    timeout: flag.Timeout = "30m",
) -> View:
    """Install a framework on every worker.

    A second run changes nothing.

    Examples:
      tpukit provision demo jax
      tpukit provision demo torch_xla --requirements requirements.txt
    """
    from tpukit import bootstrap
    from tpukit.provision.recipes import Recipe

    chosen = Recipe.named(recipe)
    on_top = flag.file_bytes(requirements, "--requirements")
    deadline = toolkit.deadline(flag.seconds(timeout))
    means = toolkit.means()
    workers = bootstrap.remote_workers(means, toolkit.find(name), deadline)
    hear = narrate_steps(toolkit.console, toolkit.clock)
    report = bootstrap.provisioned(means, workers, chosen, on_top, deadline, hear)
    toolkit.console.say(f"{report.changes} changes on {len(report.workers)} workers")
    return views.provision(report)
