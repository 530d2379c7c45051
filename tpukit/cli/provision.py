"""`tpukit provision`: apply a recipe to every worker of a slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import CONNECT_SECONDS, Toolkit
from tpukit.console import View

if TYPE_CHECKING:
    from tpukit.provision.apply import ProvisionEvent
    from tpukit.up import Progress

RecipeName = Annotated[str, Argument(metavar="RECIPE", help=flag.RECIPES)]


def provision(
    toolkit: Toolkit,
    name: flag.Name,
    recipe: RecipeName = flag.DEFAULT_RECIPE,
    requirements: flag.Requirements = "",
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
    on_top = flag.file_bytes(requirements, "--requirements")
    deadline = toolkit.deadline(flag.seconds(timeout))
    patience = deadline.within(CONNECT_SECONDS).remaining()
    report = apply_recipe(
        toolkit.workers([toolkit.find(name)], "all", patience),
        chosen,
        requirements=on_top,
        deadline=deadline,
        on_event=narrate(toolkit).on_provision,
    )
    toolkit.console.say(f"{report.changes} changes on {len(report.workers)} workers")
    return views.provision(require_provisioned(report))


def narrate(toolkit: Toolkit) -> Progress:
    """Return what narrates the main job: a line a stage or step, with the time since now.

    Of the steps, what changes on every worker, and the lines of worker 0; all where verbose.
    """
    from tpukit.up import Progress

    started = toolkit.clock.monotonic()

    def on_stage(stage: str, line: str) -> None:
        toolkit.console.say(f"{toolkit.clock.monotonic() - started:7.1f} s  {stage:<10} {line}")

    def on_provision(event: ProvisionEvent) -> None:
        line = f"worker {event.worker}: {event.step}: {event.text}"
        quiet = event.text.startswith("unchanged") if event.kind == "finished" else event.worker
        if event.kind == "started" or quiet:
            toolkit.console.detail(f"{'':12}{line}")
        else:
            on_stage("provision", line)

    return Progress(on_stage, on_provision)
