"""The flags of a search for capacity: where `up` and `create` look, and how long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from typer import Option

from tpukit.accelerators import AcceleratorType, region_of
from tpukit.cli import listings
from tpukit.cli.dry_run import rehearse
from tpukit.cli.parameters import ReapOwn, life, seconds, words, zone_names
from tpukit.cli.request import (
    RequestFlags,
    bought,
    on_both_roads,
    say_wanted,
    slice_requests,
)
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NoCapacity, TpukitError
from tpukit.models import QUEUE_ONLY, SliceRequest
from tpukit.slices.capacity import ASKING_SECONDS, Search
from tpukit.slices.lifetime import CLAIM
from tpukit.slices.naming import LOOKING, SEARCH
from tpukit.slices.quota_names import needs
from tpukit.slices.refusals import AFTER_FIX, Refusal, place
from tpukit.text import one_line

#: How long a search lasts by default, as a flag.
MAX_WAIT = f"{ASKING_SECONDS / 3600:g}h"


@dataclass(frozen=True)
class CapacityFlags:
    """Further zones and types to try, and how often."""

    zones: Annotated[
        str, Option(metavar="ZONE,…", help="Try these zones, one after the other.")
    ] = ""
    anywhere: Annotated[
        bool,
        Option("--anywhere", help="Try every zone with the type: known successes, then near ones."),
    ] = False
    types: Annotated[
        str, Option(metavar="TYPE,…", help="Also accept these types, in order of preference.")
    ] = ""
    purchase: Annotated[
        str,
        Option(metavar="MODEL,…", help="Accept spot, on-demand or others, in order of preference."),
    ] = ""
    keep_trying: Annotated[
        bool,
        Option("--keep-trying", help="Try again until --max-wait, with pauses of 30 s to 2 min."),
    ] = False
    max_wait: Annotated[
        str,
        Option(
            metavar="DURATION",
            help=f"Time for --keep-trying, for all slices together; default: {MAX_WAIT}.",
        ),
    ] = ""
    reap_own: ReapOwn = False
    claim_within: Annotated[
        str,
        Option(
            metavar="DURATION",
            help="Delete it if nobody uses it within this time after it is READY.",
        ),
    ] = ""

    @property
    def given(self) -> bool:
        """True if the flags ask for more than one try in one place."""
        return bool(self.zones or self.anywhere or self.types or self.purchase or self.keep_trying)

    @property
    def seconds(self) -> float:
        """How long to search, in seconds; 0 without --keep-trying.

        Raises `BadInput` if --max-wait has no --keep-trying or is not a duration.
        """
        if self.max_wait and not self.keep_trying:
            fix = Fix(note="add --keep-trying; --timeout limits the wait for one slice")
            raise BadInput("--max-wait needs --keep-trying", fix=fix)
        return seconds(self.max_wait or MAX_WAIT, "--max-wait") if self.keep_trying else 0.0


ONE_PLACE = CapacityFlags()


def search(
    toolkit: Toolkit,
    accelerator: AcceleratorType,
    name: str,
    options: RequestFlags,
    capacity: CapacityFlags,
    timeout: float,
) -> Search:
    """Return the requests to try and the time for them; `timeout` is in seconds, for each place.

    Raises:
        BadInput: flags contradict each other, or a type or a zone does not exist.
        TpukitError: the zones that offer a type could not be read.
    """
    asking = capacity.seconds
    tiers = words(capacity.purchase)
    waits = [tier in QUEUE_ONLY for tier in tiers]
    if not asking and waits != sorted(waits):
        what = f"without --keep-trying, nothing is asked after {tiers[waits.index(True)]}"
        fix = Fix(note="name it last, or add --keep-trying")
        raise BadInput(what, why="a create in one round waits there in the queue", fix=fix)
    everywhere = bool(capacity.zones or capacity.anywhere)
    toolkit.cloud.check_given("project", *([] if everywhere else ["zone"]))
    types = [AcceleratorType.parse(word.lower()) for word in words(capacity.types)]
    if capacity.claim_within:
        lease = f"{CLAIM}={life(capacity.claim_within, '--claim-within'):.0f}"
        options = replace(options, labels=",".join(filter(None, (options.labels, lease))))
    places = _places(toolkit, list(dict.fromkeys([accelerator, *types])), capacity)
    requests = slice_requests(
        toolkit,
        name,
        [
            (type_, zone, flags)
            for tier in bought(options, tiers)
            for type_, zone in places
            for flags in (on_both_roads(toolkit, type_, tier) if everywhere else [tier])
        ],
    )
    if asking:
        _check_queues(requests)
    if capacity.anywhere:
        requests = toolkit.cloud.capacity.best_first(requests)
    toolkit.slices.about(requests[0].name, requests[0].zone if len(places) == 1 else "")
    say_wanted(toolkit.console, requests)
    for line in filter(None, map(needs, requests)):
        toolkit.console.detail(line)
    if not capacity.given:
        return Search(requests, seconds=timeout)
    refused = _without_quota(toolkit, requests) if capacity.anywhere else []
    sought = [replace(request, labels={**request.labels, SEARCH: LOOKING}) for request in requests]
    until = toolkit.deadline(asking) if asking else None
    return Search(sought, until, timeout, refused=refused)


def planned_search(
    toolkit: Toolkit,
    wishes: Sequence[Search],
    source_ranges: tuple[str, ...],
    *,
    firewall: bool,
    before: Callable[[Toolkit], object] = lambda by: None,
) -> View:
    """Show the calls of a dry run in which only the last place has capacity.

    The dry run calls `before` first.
    """
    from tpukit.access.creation import ensure_somewhere, wait_reachable

    def act(by: Toolkit) -> None:
        before(by)
        context = by.reach.context(source_ranges)
        for sought in wishes:
            name, limit = sought.requests[0].name, by.deadline(sought.seconds)
            made = ensure_somewhere(
                context,
                sought,
                firewall=firewall,
                deadline=limit,
                on_state=by.display.say_state(name),
            )
            wait_reachable(context, made)

    asked = len(wishes[0].requests) - len(wishes[0].refused)
    return rehearse(toolkit, act, full=max(0, asked - 1))


def offer_search(error: TpukitError, words: Sequence[str]) -> None:
    """Make the fix of a create without capacity the same command line with --keep-trying."""
    if not isinstance(error, NoCapacity) or {"--keep-trying", "--dry-run"} & {*words}:
        return
    if error.fix and error.fix.arguments[1:2] == ("delete",):
        return  # slices of an incomplete gang are left
    note = error.fix.note if error.fix else ""
    error.fix = Fix.command("tpukit", *words, "--keep-trying", note=note)
    flags = {word.partition("=")[0] for word in words}
    if not flags & {"--anywhere", "--zones", "--data-disk", "--subnetwork"}:
        error.otherwise = Fix.command("tpukit", *words, "--anywhere")


def _check_queues(requests: Sequence[SliceRequest]) -> None:
    """Raise `BadInput` if a search would keep two places of one name in a zone's queue."""
    queued = [request.zone for request in requests if request.queue_only]
    if len(set(queued)) < len(queued):
        raise BadInput(
            "a search keeps one place in a zone's queue",
            why="all its requests have the same name",
            fix=Fix(note="name one type, and one way to buy that waits in a queue"),
        )


def _places(
    toolkit: Toolkit, types: Sequence[AcceleratorType], capacity: CapacityFlags
) -> list[tuple[AcceleratorType, str]]:
    """Return the pairs of a type and a zone to try, in order of preference."""
    if capacity.zones and capacity.anywhere:
        raise BadInput("--zones and --anywhere exclude each other")
    own = toolkit.flags.zone
    if not capacity.anywhere:
        given = filter(None, [own, *zone_names(capacity.zones)])
        zones = list(dict.fromkeys(given)) or [toolkit.settings.get("zone")]
        return [(type_, zone) for type_ in types for zone in zones]
    offered = listings.accelerator_types(toolkit.cloud)
    for line in offered.warnings:
        toolkit.console.warn(line)
    home = toolkit.settings.get("zone")
    placed = [
        (type_, zone)
        for type_ in types
        for zone in sorted(offered.zones_of(type_.name), key=lambda zone: _distance(home, zone))
    ]
    if not placed:
        raise BadInput(
            f"no zone offers {' or '.join(type_.name for type_ in types)} to this project",
            fix=Fix.command("tpukit", "types", "--live"),
        )
    return placed


def _without_quota(toolkit: Toolkit, requests: Sequence[SliceRequest]) -> list[Refusal]:
    """Return the places whose quota is known to be 0, and say so; some quotas cannot be read."""
    from tpukit.doctor.quota_checks import no_quota

    zones = list(dict.fromkeys(request.zone for request in requests if request.api == "tpu"))
    try:
        limits = toolkit.cloud.project_provider.limits(zones) if zones else {}
    except TpukitError as error:
        toolkit.console.detail(f"quotas were not read: {one_line(error.summary())}")
        return []
    refused = [
        Refusal(request, AFTER_FIX, 0, lack)
        for request in requests
        if (lack := no_quota(limits.get(request.zone, {}), request))
    ]
    if refused:
        places = ", ".join(place(refusal.request) for refusal in refused)
        toolkit.console.say(f"not asked, because the quota is 0: {places}")
    return refused


def _distance(home: str, zone: str) -> tuple[bool, bool, bool, str]:
    """Return a sort key: the home zone first, then its region, its continent, the others."""
    region, continent = region_of(home), home.partition("-")[0]
    same = region_of(zone) == region, zone.partition("-")[0] == continent
    return zone != home, not same[0], not same[1], zone
