"""Decide which sources the firewall rules of a network admit to port 22.

VPC documentation, "VPC firewall rules": the rule with the lowest priority number decides. With
equal numbers, a deny rule comes first. Without targets a rule applies to the whole network.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

from tpukit.errors import BadInput, Fix
from tpukit.models import FirewallRule, Slice

#: Half of all IPv4 addresses, and half of the routed IPv6 addresses, 2000::/3.
_WORLD = {4: 1 << 31, 6: 1 << 124}


def parse_range(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Parse an address or a range in CIDR form; raise `BadInput` for any other text."""
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as error:
        raise BadInput(
            f"{text!r} is not an address range",
            fix=Fix(note="for example: --source-range 203.0.113.7/32"),
        ) from error


def opens_ssh(entries: Iterable[str]) -> bool:
    """Return True if entries such as `tcp:20-30` or `all` include TCP port 22."""
    return any(map(_is_ssh, entries))


def is_world(ranges: Collection[str], except_for: Collection[str] = ()) -> bool:
    """Return True if the ranges, without `except_for`, cover half of the internet or more."""
    for version, least in _WORLD.items():
        admitted, taken = _networks(ranges, version), _networks(except_for, version)
        # If two networks overlap, one contains the other.
        both = [
            min(one.num_addresses, other.num_addresses)
            for one in admitted
            for other in taken
            if one.overlaps(other)
        ]
        if sum(network.num_addresses for network in admitted) - sum(both) >= least:
            return True
    return False


def deciding(rules: Iterable[FirewallRule], slice_: Slice, source: str) -> FirewallRule | None:
    """Return the rule that decides about `source` and port 22 of a slice's workers, or None.

    `source` is an address or a range; a rule must admit all of it.
    """
    about = [rule for rule in rules if _concerns(rule, slice_) and _names(rule, source)]
    return min(about, key=lambda rule: (rule.priority, not rule.denied), default=None)


def open_to_world(
    rules: Sequence[FirewallRule], slice_: Slice | None = None
) -> tuple[FirewallRule, ...]:
    """Return the rules that open port 22 of a slice, or of any machine, to the world."""
    active = [rule for rule in rules if not rule.disabled and opens_ssh(_entries(rule))]
    about = [rule for rule in active if slice_ is None or _concerns(rule, slice_)]
    denying = [rule for rule in about if rule.denied]
    return tuple(rule for rule in about if rule.allowed and _is_open(rule, denying, slice_))


def _is_open(rule: FirewallRule, denying: Iterable[FirewallRule], slice_: Slice | None) -> bool:
    above = [
        denying_rule
        for denying_rule in denying
        if denying_rule.priority <= rule.priority
        and (slice_ is not None or _has_targets_of(denying_rule, rule))
    ]
    return is_world(
        rule.source_ranges, [text for denying_rule in above for text in denying_rule.source_ranges]
    )


def _has_targets_of(deny: FirewallRule, allow: FirewallRule) -> bool:
    """Return True if a deny rule applies to every machine of an allow rule."""
    if deny.network != allow.network:
        return False
    if not deny.target_tags and not deny.target_service_accounts:
        return True
    tags, accounts = set(allow.target_tags), set(allow.target_service_accounts)
    return bool(tags | accounts) and (
        tags <= set(deny.target_tags) and accounts <= set(deny.target_service_accounts)
    )


def _concerns(rule: FirewallRule, slice_: Slice) -> bool:
    if rule.disabled or rule.network != (slice_.network or "default"):
        return False
    if not opens_ssh(_entries(rule)):
        return False
    if rule.target_service_accounts:
        return slice_.service_account in rule.target_service_accounts
    return not rule.target_tags or bool(set(rule.target_tags) & set(slice_.tags))


def _entries(rule: FirewallRule) -> tuple[str, ...]:
    return rule.denied or rule.allowed


def _names(rule: FirewallRule, source: str) -> bool:
    """Return True if a rule denies any part of a source, or allows all of it."""
    wanted = parse_range(source)
    networks = _networks(rule.source_ranges, wanted.version)
    if rule.denied:
        return any(network.overlaps(wanted) for network in networks)
    return any(network.supernet_of(wanted) for network in networks)


def _is_ssh(entry: str) -> bool:
    protocol, _, ports = entry.partition(":")
    if protocol.lower() not in ("tcp", "6", "all"):
        return False
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", ports)
    return not ports or bool(match and int(match[1]) <= 22 <= int(match[2] or match[1]))


def _networks(ranges: Iterable[str], version: int) -> list[Any]:
    """Return the networks of one IP version without overlaps; skip unreadable ranges."""
    networks: list[Any] = []
    for text in ranges:
        with suppress(BadInput):
            networks.append(parse_range(text))
    return [
        *ipaddress.collapse_addresses(network for network in networks if network.version == version)
    ]
