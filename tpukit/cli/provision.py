"""`tpukit provision`: recipes and system steps on every worker of a slice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer
from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.pages import Group
from tpukit.cli.requirement_flags import (
    NAME_A_RECIPE,
    NO_REQUIREMENTS,
    RequirementFlags,
    on_top,
    warn_of_experiments,
)
from tpukit.cli.stages import provision_progress
from tpukit.cli.toolkit import CONNECT_SECONDS, Toolkit
from tpukit.cli.verb import group
from tpukit.cli.views import provision_views
from tpukit.console import View
from tpukit.errors import BadInput
from tpukit.text import counted

Words = Annotated[
    list[str] | None,
    Argument(
        metavar="[RECIPE|STEP|PROFILE…]",
        help=f"What to bring; default: {flag.DEFAULT_RECIPE}.",
    ),
]
Upgrade = Annotated[
    bool, Option("--upgrade", help="Take the newest releases known to fit, not those of the lock.")
]
Undone = Annotated[
    list[str] | None,
    Argument(metavar="[STEP|RECIPE|PROFILE…]", help="What to take back; default: everything."),
]

#: Seconds for workers to say whether they have what is nothing here: it may be mistyped.
_ASKED_SECONDS = 15.0


class _Provision(Group):
    """`tpukit provision NAME …` is `tpukit provision apply NAME …`."""

    default = "apply"


def application() -> typer.Typer:
    summary = "Bring frameworks and system steps to every worker."
    return group(summary, plan, apply, undo, status, cls=_Provision)


def plan(
    toolkit: Toolkit,
    name: flag.Name,
    words: Words = None,
    flags: RequirementFlags = NO_REQUIREMENTS,
    timeout: flag.Timeout = "5m",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Show what apply would change on each worker, and change nothing.

    Examples:
      tpukit provision plan demo jax apt:htop
      tpukit provision plan demo jax --json
    """
    from tpukit.provision.provisioning import plan_all
    from tpukit.provision.wanted import parse

    toolkit = toolkit.by(route)
    wanted = parse(words or [flag.DEFAULT_RECIPE], toolkit.profiles)
    requirements = on_top(flags, wanted.recipes, toolkit.environ)
    deadline = toolkit.deadline(flag.seconds(timeout))
    if wanted.reaches_further:
        wanted = toolkit.surroundings(name).resolved(wanted)
    workers = toolkit.workers(name, "all", deadline.remaining())
    return provision_views.provision_plan(
        plan_all(workers, wanted, requirements=requirements, deadline=deadline), name, words or []
    )


def apply(
    toolkit: Toolkit,
    name: flag.Name,
    words: Words = None,
    flags: RequirementFlags = NO_REQUIREMENTS,
    upgrade: Upgrade = False,
    timeout: flag.Timeout = "30m",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Bring recipes and system steps to every worker.

    The word apply may be left out. A second run changes nothing. System steps come before recipes;
    what stands in the way of one on any worker is said before anything is changed.

    Examples:
      tpukit provision demo jax
      tpukit provision demo torch_xla --requirements requirements.txt
      tpukit provision demo flax --upgrade
      tpukit provision apply demo jax apt:htop
    """
    from tpukit.provision.apply import require_provisioned
    from tpukit.provision.provisioning import provision_all
    from tpukit.provision.wanted import parse

    toolkit = toolkit.by(route)
    wanted = parse(words or [flag.DEFAULT_RECIPE], toolkit.profiles)
    requirements = on_top(flags, wanted.recipes, toolkit.environ)
    if upgrade and any("==" in word for word in words or []):
        raise BadInput("--upgrade takes the newest release, NAME==VERSION another one")
    if upgrade and not wanted.recipes:
        raise BadInput("--upgrade is of recipes, and none is named", fix=NAME_A_RECIPE)
    if upgrade:
        wanted = wanted.upgraded(str(toolkit.clock.time()))
    warn_of_experiments(wanted.recipes, toolkit.console)
    deadline = toolkit.deadline(flag.seconds(timeout))
    patience = deadline.within(CONNECT_SECONDS).remaining()
    around = toolkit.surroundings(name) if wanted.reaches_further else None
    wanted = around.resolved(wanted) if around else wanted
    stages = toolkit.job_stages(name)
    on_event = provision_progress(stages)
    workers = toolkit.workers(name, "all", patience)
    with _going_on(toolkit):
        report = provision_all(
            workers,
            wanted,
            requirements=requirements,
            deadline=deadline,
            on_event=on_event,
            prepare=partial(around.prepare, wanted, deadline, on_event) if around else lambda: None,
        )
    result = provision_views.provision(require_provisioned(report))
    if around:
        around.open(wanted)
    where = counted(len(report.workers), "worker")
    stages.done("provision", f"{counted(report.changes, 'change')} on {where}")
    return result


def undo(
    toolkit: Toolkit,
    name: flag.Name,
    words: Undone = None,
    timeout: flag.Timeout = "30m",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Take back what apply has changed, the last change first.

    What you have changed yourself stays. Without words everything goes that tpukit has brought.

    Examples:
      tpukit provision undo demo apt:htop
      tpukit provision undo demo --yes
    """
    from tpukit.provision.provisioning import environments_on
    from tpukit.provision.system_steps import reach_further
    from tpukit.provision.undo import require_undone, undo_all
    from tpukit.provision.wanted import known

    toolkit = toolkit.by(route)
    seconds = flag.seconds(timeout)

    def brought() -> frozenset[str]:
        limit = toolkit.deadline(min(seconds, _ASKED_SECONDS))
        return environments_on(toolkit.workers(name, "all", limit.remaining()), limit)

    chosen = known(words or [], toolkit.profiles, brought)
    if not chosen:
        toolkit.confirm(f"take back everything that tpukit has brought to {name}?")
    deadline = toolkit.deadline(seconds)
    patience = deadline.within(CONNECT_SECONDS).remaining()
    stages = toolkit.job_stages(name)
    workers = toolkit.workers(name, "all", patience)
    on_event = provision_progress(stages)
    with _going_on(toolkit):
        reports = undo_all(workers, chosen, deadline=deadline, on_event=on_event)
    undone = [step for each in reports for step in each.undone]
    if reach_further(undone):
        toolkit.surroundings(name).undone(undone, deadline, on_event)
    taken = counted(sum(len(each.undone) for each in reports), "change")
    stages.done("undo", f"{taken} taken back on {counted(len(reports), 'worker')}")
    return provision_views.undone(require_undone(reports))


def status(
    toolkit: Toolkit,
    name: flag.Name,
    timeout: flag.Timeout = "5m",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Show what was brought to each worker, by which version, and whether it holds.

    Examples:
      tpukit provision status demo
      tpukit provision status demo --json
    """
    from tpukit.provision.provisioning import status_all

    toolkit = toolkit.by(route)
    deadline = toolkit.deadline(flag.seconds(timeout))
    workers = toolkit.workers(name, "all", deadline.remaining())
    return provision_views.provision_status(status_all(workers, deadline=deadline))


@contextmanager
def _going_on(toolkit: Toolkit) -> Iterator[None]:
    """Say of an interrupt that it ends nothing on the workers, and how to see to it."""
    from tpukit.provision.worker_jobs import GOES_ON

    try:
        yield
    except KeyboardInterrupt as signal:
        error = toolkit.interrupted(signal)
        error.exists = (*error.exists, GOES_ON)
        raise error from None
