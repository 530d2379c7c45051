"""`tpukit create`: create a slice if it does not exist, and wait until it is READY."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.accelerators import AcceleratorType, is_listed
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun
from tpukit.cli.request import DEFAULTS, RequestFlags, wanted
from tpukit.cli.search_flags import ONE_PLACE, CapacityFlags, planned_search, search
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.reap import with_room
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NameTaken, SliceLost, TpukitError
from tpukit.models import QUEUE_ONLY, Slice
from tpukit.slices import naming
from tpukit.slices.quota_names import needs
from tpukit.slices.refusals import Refusal, documents, doubtful, removals

if TYPE_CHECKING:
    from tpukit.access.context import Context
    from tpukit.access.gang import Gang
    from tpukit.cli.toolkit.cloud import Cloud
    from tpukit.clock import Deadline
    from tpukit.slices.capacity import Search

#: A slice, True if this command made it, and the refusals before it.
Made = tuple[Slice, bool, Sequence[Refusal]]
#: Seconds to remove the label of a complete gang from its slices.
_LABEL_SECONDS = 300.0

Unlisted = Annotated[
    bool,
    Option("--allow-unlisted-type", help="Allow a type that `tpukit types` does not list: tpu7x-8"),
]

Count = Annotated[
    int,
    Option(metavar="N", help="Create N slices, one after the other: NAME-0, NAME-1, …", min=1),
]

AllOrNone = Annotated[
    bool,
    Option(
        "--all-or-none",
        help="With --count: if one of the slices cannot be had, delete the ones that this command "
        "made. With --keep-trying, do so after each round, and try again.",
    ),
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
    all_or_none: AllOrNone = False,
    dry_run: DryRun = False,
    capacity: CapacityFlags = ONE_PLACE,
    options: RequestFlags = DEFAULTS,
    proxy: flag.ProxyFlags = flag.DIRECT,
) -> View:
    """Create a slice and wait until it is READY and lets you in.

    If you run it again, it finds the same slice; it fails if that slice has another spec. It also
    makes a firewall rule for your address. Problems with access are reported before anything bills.

    With several zones or types, it tries each place until one has capacity, reports why the others
    had none, and leaves one slice. If you run it again, even on another machine, it continues with
    that slice.

    Examples:
      tpukit create v3-8 demo --zone us-central1-a
      tpukit create v6e-4 demo --spot --labels team=vision
      tpukit create v5litepod-8 demo --types v6e-8 --anywhere --keep-trying --max-wait 12h
      tpukit create v5litepod-8 pod --count 4 --all-or-none --zones us-west1-c,us-east5-a
    """
    from tpukit.google.credentials import on_compute_engine

    accelerator, name = wanted(accelerator_type, name, allow_unlisted=allow_unlisted_type)
    limit = flag.seconds(timeout)
    route = proxy.route(options.internal_ips)
    toolkit = toolkit.by(route)
    names = _names(toolkit.cloud, accelerator, name, count)
    wishes: Sequence[Search] = [
        search(toolkit, accelerator, one_name, options, capacity, limit) for one_name in names
    ]
    gang = _gang(toolkit, wishes) if all_or_none else None
    wishes = gang.searches if gang else wishes
    deadline = toolkit.deadline(capacity.seconds + limit * count)
    context = toolkit.reach.context(tuple(source_ranges or ()))
    # If we are outside the network, tpukit cannot know how you reach internal addresses.
    known = not route.inside or route.proxied or context.source_ranges or on_compute_engine()
    firewall = bool(known) and not no_firewall
    if dry_run:
        for line in filter(None, (needs(request) for one in wishes for request in one.requests)):
            toolkit.console.say(line)
        return planned_search(toolkit, wishes, tuple(source_ranges or ()), firewall=firewall)

    def obtain() -> list[Made]:
        made: list[Made] = []
        for sought in wishes:
            with _naming_others(made, toolkit.cloud.costs, gang=bool(gang)):
                made.append(
                    _obtained(
                        toolkit,
                        context,
                        sought,
                        deadline,
                        firewall=firewall,
                        reap_own=capacity.reap_own,
                    )
                )
        return made

    made = _all(toolkit, gang, obtain) if gang else obtain()
    after = [_after(slice_, options, route) for slice_, *_ in made]
    after += slice_views.claims(slice_ for slice_, *_ in made)
    after += [fix for slice_, _, said in made for fix in removals(slice_, said)]
    shown = [(one, {"created": created, **documents(said, one)}) for one, created, said in made]
    for line in slice_views.unguarded(slice_ for slice_, *_ in made):
        toolkit.console.warn(line)
    if count == 1:
        ((slice_, extra),) = shown
        return slice_views.one_slice(slice_, extra=extra, next=tuple(after))
    return slice_views.several_slices(shown, after)


def _obtained(
    toolkit: Toolkit,
    context: Context,
    sought: Search,
    deadline: Deadline,
    *,
    firewall: bool,
    reap_own: bool,
) -> Made:
    """Return the existing or created slice once it can be reached."""
    from tpukit.access.creation import ensure_somewhere, wait_reachable

    on_state = toolkit.display.say_state(sought.requests[0].name)
    made = with_room(
        toolkit,
        {request.zone for request in sought.requests},
        lambda: ensure_somewhere(
            context, sought, firewall=firewall, deadline=deadline, on_state=on_state
        ),
        reap_own=reap_own,
    )
    toolkit.slices.about(made.slice.name, made.slice.zone, made.slice.state)
    one = wait_reachable(context, made)
    if one.opening:
        toolkit.console.say(f"rule {one.opening.rule.name}: {one.opening.summary}")
    return one.slice, one.created, one.refusals


def _gang(toolkit: Toolkit, wishes: Sequence[Search]) -> Gang:
    """Return the gang of these searches; raise `BadInput` for flags that --all-or-none excludes."""
    from tpukit.access.gang import Gang

    if len(wishes) < 2:
        fix = Fix(note="add --count 2 or more; a single slice is always all or none")
        raise BadInput("--all-or-none needs --count", fix=fix)
    if any(one.provisioning in QUEUE_ONLY for wish in wishes for one in wish.requests):
        fix = Fix(note="tpukit queue create TYPE NAME --count N waits for all slices together")
        raise BadInput("--all-or-none cannot wait in the queue", fix=fix)
    return Gang.of(wishes, toolkit.slices.cleanup, toolkit.deadline, toolkit.console.say)


def _all(toolkit: Toolkit, gang: Gang, obtain: Callable[[], list[Made]]) -> list[Made]:
    """Return all slices of a gang."""
    made = gang.obtain(obtain)
    with _naming_others(made, toolkit.cloud.costs):
        slices = gang.complete([slice_ for slice_, *_ in made], toolkit.deadline(_LABEL_SECONDS))
    return [(slice_, *one[1:]) for slice_, one in zip(slices, made, strict=True)]


def _names(cloud: Cloud, accelerator: AcceleratorType, name: str, count: int) -> Sequence[str]:
    """Return the names of `count` slices: NAME for one, else NAME-0, NAME-1 and so on."""
    if count == 1:
        return [name]
    cloud.check_given("project")
    stem = name or naming.default_name(cloud.identity.account, accelerator.name)
    return [naming.check_name(f"{stem}-{number}") for number in range(count)]


@contextmanager
def _naming_others(made: Sequence[Made], costs: str, *, gang: bool = False) -> Iterator[None]:
    """Add to an error the slices that were made before it, and those that may still appear.

    Its command deletes all of them, unless it is about one slice, or a `gang` deletes them itself.
    """
    try:
        yield
    except TpukitError as error:
        lines = [
            f"slice {one.name} in {one.zone}, READY; it {costs} until deleted"
            for one, *_ in made
            if not any(line.startswith(f"slice {one.name} in ") for line in error.exists)
        ]
        error.exists = (*error.exists, *lines)
        error.slices += tuple((one.zone, one.name) for one, *_ in made)
        doubts = [refusal.doubt for one, _, said in made for refusal in doubtful(said, one)]
        error.why = "\n".join(filter(None, [error.why, *doubts]))
        if made and not gang and not isinstance(error, (NameTaken, SliceLost)):
            _delete_all(error, [one.name for one, *_ in made])
        raise


def _delete_all(error: TpukitError, names: Sequence[str]) -> None:
    """Let an error's command that deletes its slice, or a new one, delete these slices too."""
    fixes = [fix for fix in (error.fix, error.otherwise) if fix]
    own = next((fix for fix in fixes if fix.arguments[:2] == ("tpukit", "delete")), None)
    words = own.arguments[2:3] if own else ()
    known = {name for _, name in error.slices}
    if not known.issuperset(words):
        words += ("--missing-ok",)
    delete = Fix.command("tpukit", "delete", *names, *words)
    others = [fix for fix in fixes if fix is not own]
    error.why = "\n".join(filter(None, [error.why, *map(str, others[1:])]))
    error.fix, error.otherwise = (others[0], delete) if others else (delete, None)


def _after(slice_: Slice, options: RequestFlags, route: flag.RouteFlags) -> Fix:
    """Return the command that follows a create, with the same route."""
    place = (slice_.name, "--zone", slice_.zone)
    if is_listed(slice_.accelerator_type):
        api = ("--api", slice_.api) if slice_.api != "tpu" and not options.api else ()
        tier = slice_.provisioning
        sought = () if tier in ("", "on-demand") or options.buys(tier) else (f"--{tier}",)
        options = options if tier == "flex-start" else options.unlimited
        words = (slice_.accelerator_type, *place, *options.repeated(), *sought, *api, *route.words)
        return Fix.command("tpukit", "up", *words)
    return Fix.command("tpukit", "provision", *place, *route.words)
