"""A slice that can be reached: what stands in its way is read first, then it and its rule are made.

A slice that nobody can reach bills. A read that fails is no reason to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from tpukit.accelerators import AcceleratorType, is_listed
from tpukit.access import rule_opening, ssh_rule
from tpukit.access.context import Context
from tpukit.access.key import with_access
from tpukit.access.rule_opening import Opening
from tpukit.clock import Deadline
from tpukit.errors import (
    BadInput,
    Fix,
    NoCapacity,
    NotAuthenticated,
    NotEnabled,
    QuotaExceeded,
    SliceLost,
    TpukitError,
)
from tpukit.models import QueueRequest, Slice, SliceRequest
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.slices import capacity
from tpukit.slices.capacity import Search
from tpukit.slices.ensure import Ensured, check_same, ensure
from tpukit.slices.last_seen import OnState, last_seen, naming_what_exists
from tpukit.slices.queue_requests import ensure_queued, wait_queued
from tpukit.slices.quota_names import addresses
from tpukit.slices.refusals import Refusal

Read = Callable[[], Any]
Outcomes = Mapping[str, Outcome[Read, Any]]


@dataclass(frozen=True)
class Reachable(Ensured):
    """A slice that is READY, the rule that lets us reach it, if any, and who refused before."""

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
    """Make sure of a slice in one of the places of a search and, beside it, of its firewall rule.

    The rules of places where no slice came about are removed; an error that ends the search before
    that names them. Without `firewall` no rule is made.

    Raises:
        TpukitError: what stands in the way, before anything is made: the first of it, the others
            in `also`; else as `ensure`, `rule_opening.ask` and, of several places,
            `capacity.obtain` raise.
    """
    opened: list[Opening] = []

    def attempt(request: SliceRequest) -> Reachable:
        if search.best_effort:
            until = search.asking or deadline.within(search.seconds)
            _wait_in_queue(context, request, deadline=until, on_state=on_state)
        limit = deadline.within(search.seconds)
        request = with_access(request, context)
        opening = _prepare(context, request, firewall=firewall, deadline=limit)
        opened.extend([opening] if opening else ())
        try:
            ensured = ensure(
                context.provider,
                request,
                deadline=limit,
                journal=context.journal,
                on_state=on_state,
            )
        except TpukitError as error:
            if opening and (opening.changed or isinstance(error, SliceLost)):
                opening.note_left(error)
            raise
        return Reachable(ensured.slice, ensured.created, opening)

    if search.single:
        return attempt(search.requests[0])
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
        lost = [each for each in search.requests if each.zone != made.slice.zone]
        _remove_rules(context, lost)
    return replace(made, refusals=refusals)


def _wait_in_queue(
    context: Context, request: SliceRequest, *, deadline: Deadline, on_state: OnState
) -> None:
    """Return once the queue has made the slice as best effort."""
    request = with_access(request, context)
    _prepare(context, request, firewall=False, deadline=deadline)
    wanted, provider = QueueRequest(request, best_effort=True), context.provider
    found, _ = ensure_queued(
        provider, wanted, deadline=deadline, journal=context.journal, on_state=on_state
    )
    wait_queued(provider, found, deadline=deadline, on_state=on_state)


def _remove_rules(context: Context, requests: Sequence[SliceRequest]) -> None:
    """Remove what was opened for slices that were not made; a rule that stays costs nothing."""
    names = {ssh_rule.tag(each.project, each.zone, each.name) for each in requests}
    for project in {each.network_place[0] for each in requests}:
        rules = context.firewall.of(project)
        with suppress(TpukitError):
            fan_out([each.name for each in rules.list() if each.name in names], rules.delete)


def wait_reachable(context: Context, made: Reachable) -> Reachable:
    """Return what was made once its rule, where one was asked for, is there too.

    Raises:
        TpukitError: as `rule_opening.finish` raises.
    """
    if made.opening is None:
        return made
    with naming_what_exists(last_seen(context.provider, made.slice)):
        found, opening = rule_opening.finish(context, made.slice, made.opening)
    return replace(made, slice=found, opening=opening)


def _prepare(
    context: Context, request: SliceRequest, *, firewall: bool, deadline: Deadline
) -> Opening | None:
    """Look for what stands in the way of a slice, then ask for its rule."""
    ssh_rule.check_ranges(context.source_ranges)
    context = context.within(deadline)
    expected = request.expected
    seen = _seen(context, expected, request, firewall)
    found = seen["slice"].value
    problems = [_closed(seen, "slice", "types", "versions"), _closed(seen, "rules", "network")]
    if found is None:
        problems += [_unlisted_type(seen, request), _unlisted_version(seen, request)]
        problems.append(_missing_network(context, seen, expected))
        problems.append(_few_addresses(seen, request))
    problems += [seen[name].error for name in ("source", "login") if name in seen]
    _raise_all([each for each in problems if each])
    if found is not None and found.state != "DELETING":
        check_same(found, request)
    if not firewall or (found is not None and found.lost):
        return None
    target = found or expected
    moved = (target.network, target.network_project) != (expected.network, expected.network_project)
    rules = None if moved or seen["rules"].error else seen["rules"].value
    ranges = seen["source"].value or ()
    if target.workers:
        ranges = rule_opening.sources(context, target.workers[0].address)
    return rule_opening.ask(context, target, ranges, rules)


def _seen(context: Context, expected: Slice, request: SliceRequest, firewall: bool) -> Outcomes:
    """Read everything at the same time, each once."""
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
        region = zone.rpartition("-")[0]
        reads["addresses"] = partial(context.firewall.once().free_addresses, region)
    return dict(zip(reads, fan_out(list(reads.values()), lambda read: read()), strict=True))


def _closed(seen: Outcomes, *names: str) -> TpukitError | None:
    """Return why nobody may use an API, of several reads that say so the first."""
    errors = [seen[name].error for name in names if name in seen]
    return next((each for each in errors if isinstance(each, (NotEnabled, NotAuthenticated))), None)


def _unlisted_type(seen: Outcomes, request: SliceRequest) -> TpukitError | None:
    listed, wanted = seen["types"].value, request.accelerator_type
    if not listed or wanted in listed or not is_listed(wanted):
        return None
    zones = AcceleratorType.parse(wanted).facts.zones
    return BadInput(
        f"{wanted} is not offered in {request.zone}",
        why="the zone's list of accelerator types, as this project sees it, does not have it",
        fix=Fix.command("tpukit", "types", wanted, note=f"--zone with one of {', '.join(zones)}"),
    )


def _unlisted_version(seen: Outcomes, request: SliceRequest) -> TpukitError | None:
    listed, wanted = seen["versions"].value, request.runtime_version
    if not listed or wanted in listed or not is_listed(request.accelerator_type):
        return None
    usual = AcceleratorType.parse(request.accelerator_type).runtime_version
    near = get_close_matches(wanted, listed, n=3)
    meant = f"; near it: {', '.join(near)}" if near else ""
    return BadInput(
        f"there is no runtime version {wanted} in {request.zone}{meant}",
        fix=Fix(note=f"--runtime-version {usual}, the one for {request.accelerator_type}"),
    )


def _few_addresses(seen: Outcomes, request: SliceRequest) -> TpukitError | None:
    free = seen["addresses"].value if "addresses" in seen else None
    wanted, region = addresses(request), request.zone.rpartition("-")[0]
    if free is None or wanted <= free:
        return None
    return QuotaExceeded(
        f"a {request.accelerator_type} takes {wanted} external addresses, {region} has {free} left",
        reason="IN_USE_ADDRESSES",
        why="every worker takes one, and the project's quota of the region is nearly used up",
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
            note="or --network with one that is there",
        ),
    )


def _raise_all(problems: list[TpukitError]) -> None:
    refused = [each for each in problems if isinstance(each, NotAuthenticated)]
    for first in refused or problems:  # without credentials nothing else is known
        first.also = () if refused else tuple(problems[1:])
        raise first
