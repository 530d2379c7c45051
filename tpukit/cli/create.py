"""`tpukit create`: make sure that a slice exists and is READY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.accelerators import AcceleratorType, is_listed
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun
from tpukit.cli.places import ONE_PLACE, CapacityFlags, planned_search, search
from tpukit.cli.request import DEFAULTS, RequestFlags, wanted
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.errors import Fix, TpukitError
from tpukit.models import Slice
from tpukit.slices import naming
from tpukit.slices.quota_names import needs
from tpukit.slices.refusals import Refusal, documents, removals

if TYPE_CHECKING:
    from tpukit.access.context import Context
    from tpukit.clock import Deadline
    from tpukit.slices.capacity import Search

#: A slice, whether this command made it, and who refused before.
Made = tuple[Slice, bool, Sequence[Refusal]]

Unlisted = Annotated[
    bool, Option("--allow-unlisted-type", help="A type that `tpukit types` does not know: tpu7x-8.")
]

Count = Annotated[
    int,
    Option(metavar="N", help="So many slices, one after the other: NAME-0, NAME-1, …", min=1),
]


def create(
    toolkit: Toolkit,
    accelerator_type: flag.AcceleratorTypeName,
    name: flag.OptionalName = "",
    source_ranges: flag.SourceRanges = None,
    no_firewall: flag.NoFirewall = False,
    allow_unlisted_type: Unlisted = False,
    timeout: flag.Timeout = "30m",
    count: Count = 1,
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
    from tpukit.cloud.credentials import on_compute_engine

    accelerator, name = wanted(accelerator_type, name, allow_unlisted=allow_unlisted_type)
    limit = flag.seconds(timeout)
    route = proxy.route(options.internal_ips)
    toolkit = toolkit.by(route)
    names = _names(toolkit, accelerator, name, count)
    wishes = [search(toolkit, accelerator, each, options, capacity, limit) for each in names]
    deadline = toolkit.deadline(capacity.seconds + limit * count)
    context = toolkit.context(tuple(source_ranges or ()))
    # Who reaches internal addresses from elsewhere does so by a way that is not known here.
    known = not route.inside or route.proxied or context.source_ranges or on_compute_engine()
    firewall = bool(known) and not no_firewall
    if dry_run:
        for line in filter(None, (needs(each) for one in wishes for each in one.requests)):
            toolkit.console.say(line)
        return planned_search(toolkit, wishes, tuple(source_ranges or ()), firewall=firewall)
    made: list[Made] = []
    for sought in wishes:
        with _naming_others(made, toolkit.costs):
            made.append(_obtained(toolkit, context, sought, deadline, firewall=firewall))
    after = [_after(found, options, route) for found, *_ in made]
    after += [fix for found, _, said in made for fix in removals(found.name, said)]
    shown = [(one, {"created": created, **documents(said)}) for one, created, said in made]
    for line in slice_views.unguarded(found for found, *_ in made):
        toolkit.console.warn(line)
    if count == 1:
        ((found, extra),) = shown
        return slice_views.one_slice(found, extra=extra, next=tuple(after))
    return slice_views.several_slices(shown, after)


def _obtained(
    toolkit: Toolkit, context: Context, sought: Search, deadline: Deadline, *, firewall: bool
) -> Made:
    """Return the slice that there is once it can be reached."""
    from tpukit.access.creation import ensure_somewhere, wait_reachable

    on_state = toolkit.say_state(sought.requests[0].name)
    made = ensure_somewhere(
        context, sought, firewall=firewall, deadline=deadline, on_state=on_state
    )
    one = wait_reachable(context, made)
    if one.opening:
        toolkit.console.say(f"rule {one.opening.rule.name}: {one.opening.summary}")
    return one.slice, one.created, one.refusals


def _names(toolkit: Toolkit, accelerator: AcceleratorType, name: str, count: int) -> Sequence[str]:
    """Return the names of so many slices: NAME for one, else NAME-0, NAME-1 and so on."""
    if count == 1:
        return [name]
    toolkit.check_given("project")
    stem = name or naming.default_name(toolkit.identity.account, accelerator.name)
    return [naming.check_name(f"{stem}-{number}") for number in range(count)]


@contextmanager
def _naming_others(made: Sequence[Made], costs: str) -> Iterator[None]:
    """Give an error the slices that were made before it."""
    try:
        yield
    except TpukitError as error:
        lines = [
            f"slice {one.name} in {one.zone}, READY; it {costs} until deleted" for one, *_ in made
        ]
        error.exists = (*error.exists, *lines)
        raise


def _after(found: Slice, options: RequestFlags, route: flag.RouteFlags) -> Fix:
    """Return what comes after a create, by the same route."""
    place = (found.name, "--zone", found.zone)
    if is_listed(found.accelerator_type):
        words = (found.accelerator_type, *place, *options.repeated(), *route.words)
        return Fix.command("tpukit", "up", *words)
    return Fix.command("tpukit", "provision", *place, *route.words)
