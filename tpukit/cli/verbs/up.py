"""`tpukit up`: create a slice, connect to its workers, provision and test them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.accelerators import AcceleratorType
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun
from tpukit.cli.request import DEFAULTS, RequestFlags, wanted
from tpukit.cli.requirement_flags import (
    NO_REQUIREMENTS,
    RequirementFlags,
    check_requested_runtimes,
    on_top,
    warn_of_experiments,
)
from tpukit.cli.search_flags import ONE_PLACE, CapacityFlags, planned_search, search
from tpukit.cli.stages import job_progress
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.reap import with_room
from tpukit.cli.views import up_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.slices import lifetime
from tpukit.slices.capacity import ASKING_SECONDS

if TYPE_CHECKING:
    from tpukit.access.context import Context
    from tpukit.slices.capacity import Search
    from tpukit.slices.stage_times import StageTimes
    from tpukit.watch.saved_watches import WatchSpec

Idle = Annotated[
    str,
    Option(metavar="DURATION", help="Delete it after worker 0's devices were idle for this time."),
]
Page = Annotated[
    str, Option("--report", metavar="FILE", help="Write an HTML page about this run of up.")
]
Fits = Annotated[
    str,
    Option(
        metavar="PROGRAM.py:STEP",
        help="First require that this step fits, as tpukit fit finds out.",
    ),
]
Recreate = Annotated[
    bool, Option("--recreate", help="If the slice was preempted or terminated, delete it first.")
]
Keep = Annotated[
    bool, Option("--keep", help="Keep running, and create the slice again if it is lost.")
]


def up(
    toolkit: Toolkit,
    accelerator_type: flag.AcceleratorTypeName,
    name: flag.OptionalName = "",
    recipe: flag.Recipe = flag.DEFAULT_RECIPE,
    flags: RequirementFlags = NO_REQUIREMENTS,
    source_ranges: flag.SourceRanges = None,
    no_firewall: flag.NoFirewall = False,
    timeout: flag.Timeout = "1h",
    idle: Idle = "",
    dry_run: DryRun = False,
    recreate: Recreate = False,
    keep: Keep = False,
    page: Page = "",
    measure: flag.Measure = False,
    fits: Fits = "",
    capacity: CapacityFlags = ONE_PLACE,
    options: RequestFlags = DEFAULTS,
    proxy: flag.ProxyFlags = flag.DIRECT,
) -> View:
    """Create, reach, provision and test a slice.

    If you run it again, it continues with the same slice and does only the missing work. It tries
    several zones and types as `tpukit create` does. With --ttl, --idle or --claim-within, a guard
    on worker 0 deletes the slice, even if your machine is off. With --keep it runs until Ctrl-C,
    and creates the slice again if it is lost.

    Examples:
      tpukit up v3-8
      tpukit up v6e-4 demo --ttl 8h --idle 30m
      tpukit --local up v4-32 demo --with jax
      tpukit up v6e-8 demo --spot --zones us-east5-a,us-east5-b --keep-trying
    """
    from tpukit import up
    from tpukit.access.creation import end_lost
    from tpukit.cli.verbs.report import write_up
    from tpukit.cli.verbs.watch import keep_slice
    from tpukit.provision.recipes import Recipe
    from tpukit.report.page import check_page
    from tpukit.smoke.runner import QUICK, Load, check_level

    accelerator, name = wanted(accelerator_type, name)
    chosen = Recipe.named(recipe, toolkit.project_files.recipes)
    requirements = on_top(flags, [chosen], toolkit.environ)
    warn_of_experiments([chosen], toolkit.console)
    route = proxy.route(options.internal_ips)
    toolkit, limit, firewall = toolkit.by(route), flag.seconds(timeout), not no_firewall
    sought = search(toolkit, accelerator, name, _idling(options, idle), capacity, limit)
    if not options.allow_unfit_runtime:
        check_requested_runtimes(chosen, sought.requests)
    context = toolkit.reach.context(tuple(source_ranges or ()))
    _check_route(route, needs_address=firewall and not context.source_ranges)
    deadline = toolkit.deadline(capacity.seconds + limit)

    def remove_lost(by: Toolkit) -> None:
        if recreate:
            end_lost(by.slices.cleanup, sought.requests, by.deadline(limit))

    if dry_run:
        ranges = tuple(source_ranges or ())
        return planned_search(toolkit, [sought], ranges, firewall=firewall, before=remove_lost)
    for name_, given in (("report", page), ("measure", measure)):
        if keep and given:
            raise BadInput(
                f"--keep and --{name_} exclude each other", fix=Fix(note="leave one out")
            )
    load = Load(2) if measure else QUICK
    check_level(chosen, load.level)
    path = check_page(page) if page else None
    if fits:
        _require_fit(toolkit, fits, sought)
    toolkit.reach.unlock_key()
    remove_lost(toolkit)
    if keep:
        return keep_slice(toolkit, _kept(context, sought, recipe, flags, capacity, firewall))
    hint = f"Ctrl-C is safe: the slice {toolkit.cloud.costs}, and the same command goes on"
    times = _times(toolkit, accelerator.name, recipe)
    stages = toolkit.display.job_stages(sought.requests[0].name, hint, times.expected())
    report = with_room(
        toolkit,
        {request.zone for request in sought.requests},
        partial(
            up.up,
            context,
            sought,
            chosen,
            endpoint=toolkit.settings.get("tpu_endpoint"),
            firewall=firewall,
            requirements=requirements,
            deadline=deadline,
            progress=job_progress(stages, toolkit.cloud.cost_so_far),
            load=load,
        ),
        reap_own=capacity.reap_own,
    )
    untypical = (*report.idle_stages, *(["smoke"] if measure else []))
    _times(toolkit, report.slice.accelerator_type, recipe).record(
        {stage: end - start for stage, start, end in stages.ended if stage not in untypical}
    )
    if path:
        write_up(toolkit, path, report, stages.ended)
    return up_views.up(report, toolkit.cloud.provider.bills)


def _times(toolkit: Toolkit, accelerator_type: str, recipe: str) -> StageTimes:
    """Return the times of earlier jobs like this one."""
    from tpukit.slices.stage_times import StageTimes

    place = "cloud" if toolkit.cloud.provider.bills else "emulator"
    return StageTimes(toolkit.paths.stage_times, f"{place} {accelerator_type} {recipe}")


def _require_fit(toolkit: Toolkit, program: str, sought: Search) -> None:
    """Raise `VerificationFailed` if the step does not fit on a type that the search may choose."""
    from tpukit.fit.compiler import TrainingStep, require

    names = dict.fromkeys(request.accelerator_type for request in sought.requests)
    toolkit.console.say(f"compiling {program} for {' and '.join(names)}")
    require(TrainingStep.parse(program), [AcceleratorType.parse(name) for name in names])


def _idling(options: RequestFlags, idle: str) -> RequestFlags:
    """Return the request with a label for the longest idle time, if one is given."""
    if not idle:
        return options
    most = f"{lifetime.IDLE}={flag.life(idle, '--idle'):.0f}"
    return replace(options, labels=",".join(filter(None, (options.labels, most))))


def _check_route(route: flag.RouteFlags, *, needs_address: bool) -> None:
    """Raise `BadInput` if this machine cannot reach workers by this route.

    `needs_address` is True if the firewall rule will allow this machine's address.
    """
    from tpukit.access import caller_address
    from tpukit.ssh import dial

    if route.internal_ips and not route.proxied and needs_address:
        caller_address.check_inside()
    if route.iap:
        dial.check_gcloud()


def _kept(
    context: Context,
    sought: Search,
    recipe: str,
    flags: RequirementFlags,
    capacity: CapacityFlags,
    firewall: bool,
) -> WatchSpec:
    """Return the spec of the slice's watch; raise `BadInput` for flags that --keep excludes."""
    from tpukit.cli.verbs.watch import check_places
    from tpukit.watch.saved_watches import WatchSpec

    request = sought.requests[0]
    zones = [other.zone for other in sought.requests[1:] if other.api == request.api]
    if capacity.claim_within:
        raise BadInput(
            "--keep and --claim-within exclude each other", fix=Fix(note="leave one out")
        )
    if capacity.types or capacity.purchase:
        fix = Fix(note="leave out --types and --purchase")
        raise BadInput("--keep makes the same slice again", fix=fix)
    if request.queue_only:
        what = f"--keep cannot make a {request.provisioning} slice again"
        bought = "reservation" if request.reservation else request.provisioning
        raise BadInput(what, fix=Fix(note=f"leave out --keep or --{bought}"))
    check_places(request, zones)
    return WatchSpec(
        request,
        zones=tuple(zones),
        recipe=recipe,
        requirements=flags.file,
        indexes=tuple(flags.index or ()),
        editable=flags.editable,
        firewall=firewall,
        source_ranges=context.source_ranges,
        max_wait=capacity.seconds or ASKING_SECONDS,
    )
