"""`tpukit create`: make sure that a slice exists and is READY."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from tpukit.accelerators import is_listed
from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.dry_run import DryRun, planned
from tpukit.cli.places import ONE_PLACE, CapacityFlags, search
from tpukit.cli.request import DEFAULTS, RequestFlags, wanted
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import Fix
from tpukit.models import ApiCall
from tpukit.slices.refusals import documents

Unlisted = Annotated[
    bool, Option("--allow-unlisted-type", help="A type that `tpukit types` does not know: tpu7x-8.")
]


def create(
    toolkit: Toolkit,
    accelerator_type: flag.AcceleratorTypeName,
    name: flag.OptionalName = "",
    source_ranges: flag.SourceRanges = None,
    no_firewall: flag.NoFirewall = False,
    allow_unlisted_type: Unlisted = False,
    timeout: flag.Timeout = "30m",
    dry_run: DryRun = False,
    capacity: CapacityFlags = ONE_PLACE,
    options: RequestFlags = DEFAULTS,
    proxy: flag.ProxyFlags = flag.DIRECT,
) -> View:
    """Make sure that a slice is READY, and lets you in.

    Typed again, it finds the same slice, and refuses one of another spec. The firewall rule for
    your own address is made beside it; what stands in the way is told before anything bills.

    With several zones or types it asks in one place after the other until one has room, says why
    each of the others had none, and leaves one slice. Typed again, here or on another machine, it
    takes up what is there.

    Examples:
      tpukit create v3-8 demo --zone us-central1-a
      tpukit create v6e-4 demo --spot --labels team=vision
      tpukit create v5litepod-8 demo --types v6e-8 --anywhere --keep-trying --max-wait 12h
    """
    from tpukit.access.preflight import ensure_somewhere, plan, wait_reachable
    from tpukit.cloud.credentials import on_compute_engine

    accelerator, name = wanted(accelerator_type, name, allow_unlisted=allow_unlisted_type)
    limit = flag.seconds(timeout)
    deadline = toolkit.deadline(capacity.seconds + limit)
    route = proxy.route(options.internal_ips)
    toolkit = toolkit.by(route)
    sought = search(toolkit, accelerator, name, options, capacity, limit)
    context = toolkit.context(tuple(source_ranges or ()))
    # Who reaches internal addresses from elsewhere does so by a way that is not known here.
    known = not route.inside or route.proxied or context.source_ranges or on_compute_engine()
    firewall = bool(known) and not no_firewall
    if dry_run:
        calls: list[ApiCall] = []
        plan(context.planning(calls.append), sought, firewall=firewall, deadline=deadline)
        return planned(calls)
    obtained = ensure_somewhere(
        context,
        sought,
        firewall=firewall,
        deadline=deadline,
        on_state=toolkit.say_state(sought.requests[0].name),
    )
    made = wait_reachable(context, obtained.made)
    found = made.slice
    if made.opening:
        toolkit.console.say(f"rule {made.opening.rule.name}: {made.opening.summary}")
    place = (found.name, "--zone", found.zone)
    after = Fix.command("tpukit", "provision", *place)
    if is_listed(found.accelerator_type):
        after = Fix.command("tpukit", "up", found.accelerator_type, *place, *options.repeated())
    extra = {"created": made.created, **documents(obtained.refusals)}
    return views.one_slice(found, extra=extra, next=(after,))
