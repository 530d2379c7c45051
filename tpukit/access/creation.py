"""Create a slice that can be reached, with its firewall rule.

The checks for obstacles come first, because an unreachable slice still bills. A failed read counts
as no obstacle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from tpukit.accelerators import AcceleratorType, is_listed, region_of
from tpukit.access import rule_opening, ssh_rule
from tpukit.access.cleanup import Cleanup
from tpukit.access.context import Context
from tpukit.access.key import with_access
from tpukit.access.rule_opening import Opening
from tpukit.clock import Deadline
from tpukit.errors import (
    BadInput,
    Fix,
    Interrupted,
    NoCapacity,
    NotAuthenticated,
    NotEnabled,
    NotFound,
    QuotaExceeded,
    SliceLost,
    Terminated,
    TpukitError,
)
from tpukit.models import QueueRequest, Slice, SliceList, SliceRequest
from tpukit.slices import capacity, naming
from tpukit.slices.capacity import Search
from tpukit.slices.claim import found, unlabelled
from tpukit.slices.ensure import Ensured, check_same, ensure
from tpukit.slices.last_seen import OnState, last_seen, naming_what_exists
from tpukit.slices.queue_requests import WAITING, ensure_queued, naming_given, wait_queued
from tpukit.slices.quota_names import addresses
from tpukit.slices.refusals import Refusal
from tpukit.ssh.fan_out import Outcome, fan_out

Read = Callable[[], Any]
Outcomes = Mapping[str, Outcome[Read, Any]]


@dataclass(frozen=True)
class Reachable(Ensured):
    """A READY slice, the opening of its rule, if any, and the refusals of other places."""

    opening: Opening | None
    refusals: Sequence[Refusal] = ()


def ensure_somewhere(
    context: Context,
    search: Search,
    *,
    firewall: bool,
    deadline: Deadline,
    on_state: OnState,
) -> Reachable:
    """Return a slice in one of the places of a search, and request its firewall rule.

    Rules of places without a slice are removed; an error that ends the search earlier names them.
    Without `firewall` no rule is made.

    Raises:
        TpukitError: an obstacle was found before anything was made; `also` has the others.
            Otherwise the errors of `ensure`, `rule_opening.ask` and, for several places,
            `capacity.obtain`.
    """
    opened: list[Opening] = []

    def attempt(request: SliceRequest) -> Reachable:
        began = context.clock.monotonic()

        def remember(error: TpukitError | None) -> None:
            context.capacity.record(request, error, context.clock.monotonic() - began)

        if request.queue_only:
            until = deadline.within(search.seconds)
            if search.asking and not search.asks_beside:
                until = search.asking
            _wait_in_queue(
                context,
                request,
                remember,
                keeps_place=search.asks_beside,
                deadline=until,
                on_state=on_state,
            )
        limit = deadline.within(search.seconds)
        request = with_access(request, context)
        near = context
        if not search.single:  # the search itself looks into every API
            near = replace(context, provider=context.provider.only(request.api))
        with naming_given(request):
            opening = _prepare(near, request, firewall=firewall, deadline=limit)
        opened.extend([opening] if opening else ())
        try:
            with naming_given(request):
                ensured = ensure(
                    near.provider,
                    request,
                    deadline=limit,
                    journal=context.journal,
                    on_state=on_state,
                )
        except TpukitError as error:
            remember(error)
            if opening and (opening.changed or isinstance(error, SliceLost)):
                opening.note_left(error)
            raise
        if ensured.created:
            remember(None)
        return Reachable(ensured.slice, ensured.created, opening)

    if search.single:
        made = attempt(search.requests[0])
        try:
            slice_ = found(context.provider, made.slice, deadline=deadline)
        except (Interrupted, Terminated):
            raise
        except TpukitError as error:  # the slice is there, and bills
            on_state(unlabelled(error))
            return made
        return replace(made, slice=slice_)
    try:
        made, refusals = capacity.obtain(
            context.provider,
            search,
            attempt,
            deadline=deadline,
            journal=context.journal,
            on_state=on_state,
        )
    except (NoCapacity, QuotaExceeded):
        if firewall:
            _remove_rules(context, search.requests)
        raise
    except TpukitError as error:
        for opening in opened:
            if opening.changed:
                opening.note_left(error)
        raise
    if firewall:
        lost = [request for request in search.requests if request.zone != made.slice.zone]
        _remove_rules(context, lost)
    return replace(made, refusals=refusals)


def _wait_in_queue(
    context: Context,
    request: SliceRequest,
    remember: Callable[[TpukitError], object],
    *,
    keeps_place: bool,
    deadline: Deadline,
    on_state: OnState,
) -> None:
    """Create the slice through a queued resource, and wait for it; `remember` gets a refusal.

    If it `keeps_place`, raise `NoCapacity` while Google has no capacity; the request stays.
    """
    request = with_access(request, context)
    _prepare(context, request, firewall=False, deadline=deadline)
    wanted, provider = QueueRequest(request), context.provider
    try:
        queued, _ = ensure_queued(
            provider, wanted, deadline=deadline, journal=context.journal, on_state=on_state
        )
        waits = keeps_place and queued.state in WAITING
        if not waits:
            wait_queued(provider, queued, deadline=deadline, on_state=on_state)
    except TpukitError as error:
        remember(error)
        raise
    if waits:
        what = f"queued resource {request.name} waits in the queue of {request.zone}"
        raise NoCapacity(what, why=f"its request keeps its place in the queue, {queued.state}")


def _remove_rules(context: Context, requests: Sequence[SliceRequest]) -> None:
    """Remove the rules of slices that were not made; ignore errors, because rules cost nothing.

    A rule stays if its zone is silent or has a slice of that name, which may be somebody else's.
    """
    with suppress(TpukitError):
        listed = context.provider.list("-") if requests else SliceList(())
        beside = ssh_rule.slices_beside(context.others(), "-") if requests else []
        there = (*listed.slices, *beside)
        named = [slice_.zone for slice_ in there if slice_.name == requests[0].name]
        names = {
            ssh_rule.tag(request.project, request.zone, request.name)
            for request in requests
            if request.zone not in (*named, *listed.unreachable)
        }
        for project in {request.network_place[0] for request in requests}:
            rules = context.firewall.of(project)
            fan_out([rule.name for rule in rules.list() if rule.name in names], rules.delete)


def wait_reachable(context: Context, made: Reachable) -> Reachable:
    """Wait for the rule of a slice, if one was requested; return the slice with its rule.

    Raises the errors of `rule_opening.finish`.
    """
    if made.opening is None:
        return made
    with naming_what_exists(last_seen(context.provider, made.slice)):
        slice_, opening = rule_opening.finish(context, made.slice, made.opening)
    return replace(made, slice=slice_, opening=opening)


def _prepare(
    context: Context, request: SliceRequest, *, firewall: bool, deadline: Deadline
) -> Opening | None:
    """Check for obstacles to a slice, then request its rule."""
    ssh_rule.check_ranges(context.source_ranges)
    context = context.within(deadline)
    expected = request.expected
    seen = _seen(context, expected, request, firewall)
    slice_ = seen["slice"].value
    problems = [_closed(seen, "slice", "types", "versions"), _closed(seen, "rules", "network")]
    if slice_ is None:
        problems += [_unlisted_type(seen, request), _unlisted_version(seen, request)]
        problems.append(_missing_network(context, seen, expected))
        problems.append(_few_addresses(seen, request))
    problems += [seen[name].error for name in ("source", "login") if name in seen]
    problems += [error for error in [seen["slice"].error] if isinstance(error, BadInput)]
    _raise_all([problem for problem in problems if problem])
    if slice_ is not None and slice_.state != "DELETING":
        with naming_what_exists(last_seen(context.provider, slice_)):
            check_same(slice_, request)
    if not firewall or (slice_ is not None and slice_.lost):
        return None
    target = slice_ or expected
    moved = (target.network, target.network_project) != (expected.network, expected.network_project)
    rules = None if moved or seen["rules"].error else seen["rules"].value
    ranges = seen["source"].value or ()
    if target.workers:
        ranges = rule_opening.sources(context, target.workers[0].address)
    return rule_opening.ask(context, target, ranges, rules)


def _seen(context: Context, expected: Slice, request: SliceRequest, firewall: bool) -> Outcomes:
    """Read all facts for the checks in parallel, each once."""
    provider, zone = context.provider.once(), expected.zone
    reads: dict[str, Read] = {
        "slice": partial(provider.get, zone, expected.name),
        "types": partial(provider.accelerator_types, zone),
        "versions": partial(provider.runtime_versions, zone),
    }
    if logins := context.os_logins:
        name = f"slice {expected.name}"
        reads["login"] = partial(logins.of, name, expected.metadata, project=True)
    if firewall:
        rules = context.firewall.of(expected.network_project).once()
        reads["rules"] = rules.list
        reads["network"] = partial(rules.has_network, expected.network)
        address = provider.worker_address(request.external_addresses)
        reads["source"] = lambda: rule_opening.sources(context, address)
    if addresses(request) > 1:
        region = region_of(zone)
        reads["addresses"] = partial(context.firewall.once().free_addresses, region)
    return dict(zip(reads, fan_out(list(reads.values()), lambda read: read()), strict=True))


def _closed(seen: Outcomes, *names: str) -> TpukitError | None:
    """Return the first of the reads' errors that closes the API to everybody or to us, or None."""
    errors = [seen[name].error for name in names if name in seen]
    return next(
        (error for error in errors if isinstance(error, (NotEnabled, NotAuthenticated))), None
    )


def _unlisted_type(seen: Outcomes, request: SliceRequest) -> TpukitError | None:
    listed, wanted = seen["types"].value, request.accelerator_type
    if not listed or wanted in listed or not is_listed(wanted):
        return None
    zones = AcceleratorType.parse(wanted).facts.zones
    return BadInput(
        f"{wanted} is not offered in {request.zone}",
        why="it is not in the zone's list of accelerator types for this project",
        fix=Fix.command("tpukit", "types", wanted, note=f"--zone with one of {', '.join(zones)}"),
    )


def _unlisted_version(seen: Outcomes, request: SliceRequest) -> TpukitError | None:
    listed, wanted = seen["versions"].value, request.runtime_version
    if not listed or wanted in listed or not is_listed(request.accelerator_type):
        return None
    usual = AcceleratorType.parse(request.accelerator_type).runtime_version
    near = get_close_matches(wanted, listed, n=3)
    meant = f"; similar: {', '.join(near)}" if near else ""
    return BadInput(
        f"there is no runtime version {wanted} in {request.zone}{meant}",
        fix=Fix(note=f"--runtime-version {usual}, the one for {request.accelerator_type}"),
    )


def _few_addresses(seen: Outcomes, request: SliceRequest) -> TpukitError | None:
    free = seen["addresses"].value if "addresses" in seen else None
    wanted, region = addresses(request), region_of(request.zone)
    if free is None or wanted <= free:
        return None
    return QuotaExceeded(
        f"a {request.accelerator_type} needs {wanted} external addresses; {region} has {free} left",
        reason="IN_USE_ADDRESSES",
        why="every worker needs one, and the project's quota in the region is nearly used up",
        fix=Fix(note="add --internal-ips and --iap, or ask for more of IN_USE_ADDRESSES"),
        retry="after-fix",
    )


def _missing_network(context: Context, seen: Outcomes, expected: Slice) -> TpukitError | None:
    if "network" not in seen or seen["network"].value is not False:
        return None
    project = expected.network_project or expected.project
    what, host = f"project {project} has no network {expected.network}", ""
    with suppress(TpukitError):  # not allowed to look
        host = "" if expected.network_project else context.firewall.once().host_project()
    if host:
        return BadInput(
            what,
            why=f"it uses the Shared VPC of project {host}, which has the firewall rules too",
            fix=Fix(note=f"--network projects/{host}/global/networks/{expected.network}"),
        )
    return BadInput(
        what,
        fix=Fix.command(
            *("gcloud", "compute", "networks", "create", expected.network),
            *("--project", project, "--subnet-mode", "auto"),
            note="or --network with an existing one",
        ),
    )


def _raise_all(problems: list[TpukitError]) -> None:
    refused = [problem for problem in problems if isinstance(problem, NotAuthenticated)]
    for first in refused or problems:  # without credentials the other reads prove nothing
        first.also = () if refused else tuple(problems[1:])
        raise first


def end_lost(cleanup: Cleanup, requests: Sequence[SliceRequest], deadline: Deadline) -> None:
    """Delete each requested slice that is lost; raise if it is not ours or has another spec.

    If a slice is gone, delete our dead queued resource for it.
    """
    provider = cleanup.provider.within(deadline)
    for request in requests:
        try:
            slice_ = provider.get(request.zone, request.name)
        except NotFound:
            for left in provider.list_queued(request.zone).requests:
                ours = naming.is_owner(request.labels[naming.OWNER], left.labels)
                if left.dead and ours and request.name in left.slices:
                    cleanup.end(left, deadline)
            continue
        if slice_.lost:
            with naming_what_exists(last_seen(provider, slice_)):
                check_same(slice_, request)
            cleanup.end(slice_, deadline, is_due=_is_lost)


def _is_lost(thing: object) -> bool:
    """Return True unless a lost slice lives again: on Compute Engine it can be started."""
    return not isinstance(thing, Slice) or thing.lost
