"""`tpukit smoke`: a small computation on every device of every worker."""

from __future__ import annotations

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View


def smoke(
    toolkit: Toolkit, name: flag.Name, recipe: flag.Recipe = "jax", timeout: flag.Timeout = "10m"
) -> View:
    """Compute on every device of every worker.

    It uses the interpreter that was provisioned. A failure exits with 10.

    Example:
      tpukit smoke demo --with jax
    """
    from tpukit import bootstrap
    from tpukit.accelerators import AcceleratorType
    from tpukit.provision.recipes import Recipe

    chosen = Recipe.named(recipe)
    deadline = toolkit.deadline(flag.seconds(timeout))
    found = toolkit.find(name)
    means = toolkit.means()
    workers = bootstrap.remote_workers(means, found, deadline)
    accelerator = AcceleratorType.parse(found.accelerator_type)
    return views.smoke(bootstrap.smoked(means, workers, accelerator, chosen, deadline))
