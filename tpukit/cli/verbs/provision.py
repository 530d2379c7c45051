"""`tpukit provision`: apply recipes and system steps to every worker of a slice."""

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
    check_runtimes,
    on_top,
    warn_of_experiments,
)
from tpukit.cli.stages import ProvisionProgress
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.toolkit.reach import CONNECT_SECONDS
from tpukit.cli.toolkit.sightings import Sightings
from tpukit.cli.verb import group
from tpukit.cli.views import provision_views
from tpukit.console import View
from tpukit.errors import BadInput
from tpukit.text import counted

Words = Annotated[
    list[str] | None,
    Argument(
        metavar="[RECIPE|STEP|SETUP…]",
        help=f"What to apply; default: {flag.DEFAULT_RECIPE}.",
    ),
]
Upgrade = Annotated[
    bool,
    Option("--upgrade", help="Install the newest releases that are known to fit."),
]
Undone = Annotated[
    list[str] | None,
    Argument(metavar="[STEP|RECIPE|SETUP…]", help="What to undo; default: everything."),
]

#: Seconds to ask the workers about a name that is unknown here and may be mistyped.
_ASKED_SECONDS = 15.0


class _Provision(Group):
    """`tpukit provision NAME …` is `tpukit provision apply NAME …`."""

    default = "apply"


def application() -> typer.Typer:
    summary = "Install frameworks and run system steps on every worker."
    return group(summary, plan, apply, undo, status, cls=_Provision)


@flag.connecting
def plan(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    words: Words = None,
    flags: RequirementFlags = NO_REQUIREMENTS,
    timeout: flag.Timeout = "5m",
) -> View:
    """Show the changes that apply would make on each worker.

    Examples:
      tpukit provision plan demo jax apt:htop
      tpukit provision plan demo jax --json
    """
    from tpukit.provision.provisioning import plan_all
    from tpukit.provision.wanted import parse

    wanted = parse(words or [flag.DEFAULT_RECIPE], toolkit.project_files.setups)
    requirements = on_top(flags, wanted.recipes, toolkit.environ)
    deadline = toolkit.deadline(flag.seconds(timeout))
    if wanted.reaches_further:
        wanted = toolkit.reach.surroundings(name).resolved(wanted)
    workers = toolkit.reach.workers(name, "all", deadline.remaining(), until=deadline)
    check_runtimes(wanted.recipes, workers, toolkit.console)
    return provision_views.provision_plan(
        plan_all(workers, wanted, requirements=requirements, deadline=deadline), name, words or []
    )


@flag.connecting
def apply(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    words: Words = None,
    flags: RequirementFlags = NO_REQUIREMENTS,
    upgrade: Upgrade = False,
    timeout: flag.Timeout = "30m",
) -> View:
    """Apply recipes and system steps to every worker.

    You may leave out the word apply. A second run changes nothing. System steps run before recipes.
    If a step cannot run on a worker, tpukit says so before it changes anything.

    Examples:
      tpukit provision demo jax
      tpukit provision demo torch_xla --requirements requirements.txt
      tpukit provision demo flax --upgrade
      tpukit provision apply demo jax apt:htop
    """
    from tpukit.provision.apply import require_provisioned
    from tpukit.provision.provisioning import provision_all
    from tpukit.provision.wanted import parse

    wanted = parse(words or [flag.DEFAULT_RECIPE], toolkit.project_files.setups)
    requirements = on_top(flags, wanted.recipes, toolkit.environ)
    if upgrade and any("==" in word for word in words or []):
        raise BadInput("--upgrade and NAME==VERSION exclude each other")
    if upgrade and not wanted.recipes:
        raise BadInput("--upgrade needs a recipe", fix=NAME_A_RECIPE)
    if upgrade:
        wanted = wanted.upgraded(str(toolkit.clock.time()))
    warn_of_experiments(wanted.recipes, toolkit.console)
    deadline = toolkit.deadline(flag.seconds(timeout))
    patience = deadline.within(CONNECT_SECONDS).remaining()
    around = toolkit.reach.surroundings(name) if wanted.reaches_further else None
    wanted = around.resolved(wanted) if around else wanted
    stages = toolkit.display.job_stages(name)
    on_event = ProvisionProgress(stages)
    workers = toolkit.reach.workers(name, "all", patience, until=deadline)
    check_runtimes(wanted.recipes, workers, toolkit.console)
    with _going_on(toolkit.seen):
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


@flag.connecting
def undo(
    toolkit: Toolkit,
    name: flag.Name,
    words: Undone = None,
    timeout: flag.Timeout = "30m",
) -> View:
    """Undo the changes of apply, the latest first.

    Your own changes stay. Without arguments it undoes everything that tpukit has changed.

    Examples:
      tpukit provision undo demo apt:htop
      tpukit provision undo demo --yes
    """
    from tpukit.provision.provisioning import environments_on
    from tpukit.provision.system_steps import reach_further
    from tpukit.provision.undo import require_undone, undo_all
    from tpukit.provision.wanted import known

    seconds = flag.seconds(timeout)

    def brought() -> frozenset[str]:
        limit = toolkit.deadline(min(seconds, _ASKED_SECONDS))
        return environments_on(
            toolkit.reach.workers(name, "all", limit.remaining(), until=limit), limit
        )

    chosen = known(words or [], toolkit.project_files.setups, brought)
    if not chosen:
        toolkit.questions.confirm(f"undo everything that tpukit has changed on {name}?")
    deadline = toolkit.deadline(seconds)
    patience = deadline.within(CONNECT_SECONDS).remaining()
    stages = toolkit.display.job_stages(name)
    workers = toolkit.reach.workers(name, "all", patience, until=deadline)
    on_event = ProvisionProgress(stages)
    with _going_on(toolkit.seen):
        reports = undo_all(workers, chosen, deadline=deadline, on_event=on_event)
    undone = [step for report in reports for step in report.undone]
    if reach_further(undone):
        toolkit.reach.surroundings(name).undone(undone, deadline, on_event)
    taken = counted(sum(len(report.undone) for report in reports), "change")
    stages.done("undo", f"{taken} undone on {counted(len(reports), 'worker')}")
    return provision_views.undone(require_undone(reports))


@flag.connecting
def status(
    toolkit: Toolkit, name: flag.OnlyName = flag.LEFT_OUT, timeout: flag.Timeout = "5m"
) -> View:
    """Show each worker's applied recipes and steps, their versions, and whether they still hold.

    Examples:
      tpukit provision status demo
      tpukit provision status demo --json
    """
    from tpukit.provision.provisioning import status_all

    deadline = toolkit.deadline(flag.seconds(timeout))
    workers = toolkit.reach.workers(name, "all", deadline.remaining(), until=deadline)
    return provision_views.provision_status(status_all(workers, deadline=deadline))


@contextmanager
def _going_on(seen: Sightings) -> Iterator[None]:
    """Add to an interrupt that the work on the workers goes on."""
    from tpukit.provision.worker_jobs import GOES_ON

    try:
        yield
    except KeyboardInterrupt as signal:
        error = seen.interrupted(signal)
        error.exists = (*error.exists, GOES_ON)
        raise error from None
