"""The one opening that SSH needs: tcp:22, from the caller's address, to the slice's own tag."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tpukit.access import packet_filter
from tpukit.access.context import Context
from tpukit.cloud.provider import FirewallProvider
from tpukit.errors import BadInput, Fix, NameTaken, NotFound, SecurityRefusal
from tpukit.models import FirewallRule, Slice

SSH = "tcp:22"
#: The names of our rules start so.
PREFIX = "tpukit-"
_DIGITS = 6  #: of the digest at the end
_TAG = re.compile(rf"({PREFIX}.+)-[0-9a-f]{{{_DIGITS}}}")


def tag(project: str, zone: str, name: str) -> str:
    """Return the network tag of a slice, which is also the name of its firewall rule.

    Tags and rule names are RFC 1035 labels of at most 63 characters; the digest keeps slices of the
    same name in two zones apart.
    """
    digest = hashlib.sha256(f"{project}/{zone}/{name}".encode()).hexdigest()[:_DIGITS]
    return f"{_stem(name)}-{digest}"


def left_over(rules: Iterable[FirewallRule], slices: Iterable[Slice]) -> tuple[FirewallRule, ...]:
    """Return our rules whose slice is gone; `slices` are all that the project has."""
    living = {rule_name(each) for each in slices}
    return tuple(each for each in rules if is_ours(each) and each.name not in living)


def is_ours(rule: FirewallRule) -> bool:
    """Tell whether a rule has a name as we give them."""
    return _TAG.fullmatch(rule.name) is not None


def is_for(rule: FirewallRule, name: str) -> bool:
    """Tell whether a rule is that of a slice so called, in whichever zone."""
    match = _TAG.fullmatch(rule.name)
    return bool(match and match[1] == _stem(name))


def check_ranges(ranges: Sequence[str], *, world: bool = False) -> tuple[str, ...]:
    """Return IPv4 or IPv6 ranges in CIDR form.

    Raises:
        BadInput: one of them is not an address or a range.
        SecurityRefusal: together they are the whole world, and `world` does not allow that.
    """
    checked = tuple(str(packet_filter.parse_range(text)) for text in ranges)
    if not world and packet_filter.is_world(checked):
        raise SecurityRefusal(
            "refusing to open port 22 to the whole world",
            why="CIS Google Cloud benchmark 3.6: SSH must not be reachable from every address",
            fix=Fix(
                note="leave --source-range out: your own address, or give one with --allow-world"
            ),
        )
    return checked


def apply(
    provider: FirewallProvider, found: Slice, source_ranges: Sequence[str]
) -> tuple[FirewallRule, bool]:
    """Make sure that a rule admits these sources to the slice's port 22; return it and if it
    changed.

    Ranges that the rule already has stay: a session from elsewhere is not cut.

    Raises `NameTaken` where somebody changed the rule so that it admits nobody to this slice.
    """
    wanted = FirewallRule(
        name=rule_name(found),
        network=found.network or "default",
        source_ranges=tuple(source_ranges),
        target_tags=(rule_name(found),),
        description="SSH to one TPU slice, made by tpukit and removed with the slice",
    )
    present = _rule(provider, wanted.name)
    if present is None:
        try:
            provider.insert(wanted)
            return wanted, True
        except NameTaken:  # made meanwhile, or by a call whose answer was lost
            present = _rule(provider, wanted.name) or wanted
    _check_ours(present, wanted)
    return _widened(provider, present, wanted.source_ranges)


def open_for(
    context: Context, found: Slice, world: bool = False
) -> tuple[Slice, FirewallRule, bool]:
    """Tie the slice to its rule by its tag and let the rule admit us; say whether it changed.

    Raises:
        SecurityRefusal: the ranges are the whole world, and `world` does not allow that.
        SliceLost, NameTaken, BadInput, TpukitError: as `Context.check_reachable` and `apply` raise.
    """
    context.check_reachable(found)
    own = rule_name(found)
    if own not in found.tags:
        context.provider.replace_tags(found.zone, found.name, (*found.tags, own))
        found = replace(found, tags=(*found.tags, own))
    ranges = context.source_ranges or (context.source_address(found.workers[0].address),)
    rule, changed = apply(context.firewall, found, check_ranges(ranges, world=world))
    return found, rule, changed


def remove(provider: FirewallProvider, name: str) -> bool:
    """Remove a rule of ours; return whether there was one.

    Raises `BadInput` where the name is not one that tpukit gives to its rules.
    """
    if not name.startswith(PREFIX):
        raise BadInput(f"{name} is not a rule of tpukit's")
    if _rule(provider, name) is None:
        return False
    try:
        provider.delete(name)
    except NotFound:
        return False
    return True


def missing(provider: FirewallProvider, found: Slice, source: str) -> str:
    """Return which rule SSH from `source` to the slice lacks, or "" where one admits it."""
    deciding = packet_filter.deciding(provider.list(), found, source)
    if deciding and deciding.allowed:
        return ""
    network = found.network or "default"
    if deciding:
        return f"firewall rule {deciding.name} of network {network} denies {SSH} from {source}"
    tags = ", ".join(found.tags) or "(the slice has none)"
    return f"no firewall rule of network {network} admits {SSH} from {source} to the tags {tags}"


def apply_command(found: Slice) -> Fix:
    """Return the command that opens the rule of a slice."""
    return Fix.command("tpukit", "firewall", "apply", found.name, "--zone", found.zone)


def close_command(rule: FirewallRule, project: str) -> Fix:
    """Return the command that closes a rule; one that others made is only disabled."""
    if is_ours(rule):
        return Fix.command("tpukit", "firewall", "remove", rule.name)
    update = ("gcloud", "compute", "firewall-rules", "update", rule.name, "--disabled")
    return Fix.command(*update, "--project", project, note="--no-disabled opens it again")


def rule_name(found: Slice) -> str:
    """Return the name of a slice's rule, which is also its tag."""
    return tag(found.project, found.zone, found.name)


def _stem(name: str) -> str:
    return f"{PREFIX}{name[:49].rstrip('-')}"


def _rule(provider: FirewallProvider, name: str) -> FirewallRule | None:
    return next((rule for rule in provider.list() if rule.name == name), None)


def _widened(
    provider: FirewallProvider, present: FirewallRule, sources: Sequence[str]
) -> tuple[FirewallRule, bool]:
    new = [each for each in sources if each not in present.source_ranges]
    if not new:
        return present, False
    ranges = (*present.source_ranges, *new)
    provider.replace_source_ranges(present.name, ranges)
    return replace(present, source_ranges=ranges), True


def _check_ours(present: FirewallRule, wanted: FirewallRule) -> None:
    """Raise where a rule of our name would not admit anybody, however many ranges it had."""
    closed = {
        "it is disabled": present.disabled,
        f"it is of network {present.network}": present.network != wanted.network,
        "it has not the slice's tag": not set(wanted.target_tags) <= set(present.target_tags),
        "it does not open port 22": not packet_filter.opens_ssh(present.allowed),
    }
    reasons = [reason for reason, holds in closed.items() if holds]
    if reasons:
        raise NameTaken(
            f"firewall rule {present.name} exists and admits nobody",
            why="; ".join(reasons),
            fix=Fix.command("tpukit", "firewall", "remove", present.name),
        )
