"""What the firewall rules of a network let through to port 22, and for whom.

VPC documentation, "VPC firewall rules": the rule with the lowest priority number decides, one that
denies before one that allows; without targets a rule is for every machine of its network.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

from tpukit.errors import BadInput, Fix
from tpukit.models import FirewallRule, Slice

#: Half of all IPv4 addresses, and half of the IPv6 ones that are routed, 2000::/3.
_WORLD = {4: 1 << 31, 6: 1 << 124}


def parse_range(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return an address or a range in CIDR form; raise `BadInput` for what is neither."""
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as error:
        raise BadInput(
            f"{text!r} is not an address range",
            fix=Fix(note="for example: --source-range 203.0.113.7/32"),
        ) from error


def opens_ssh(entries: Iterable[str]) -> bool:
    """Tell whether TCP port 22 is among protocols and ports such as `tcp:20-30` and `all`."""
    return any(map(_is_ssh, entries))


def is_world(ranges: Collection[str], except_for: Collection[str] = ()) -> bool:
    """Return True if ranges are half of the internet or more, in however many parts."""
    for version, least in _WORLD.items():
        admitted, taken = _networks(ranges, version), _networks(except_for, version)
        # Of two networks that overlap one holds the other.
        both = [
            min(one.num_addresses, other.num_addresses)
            for one in admitted
            for other in taken
            if one.overlaps(other)
        ]
        if sum(network.num_addresses for network in admitted) - sum(both) >= least:
            return True
    return False


def deciding(rules: Iterable[FirewallRule], found: Slice, source: str) -> FirewallRule | None:
    """Return the rule that decides whether `source` reaches port 22 of a slice's workers.

    `source` is an address or a range, all of which has to be admitted.
    """
    about = [each for each in rules if _concerns(each, found) and _names(each, source)]
    return min(about, key=lambda each: (each.priority, not each.denied), default=None)


def open_to_world(
    rules: Sequence[FirewallRule], found: Slice | None = None
) -> tuple[FirewallRule, ...]:
    """Return the rules that let the world reach port 22 of a slice; without one, of any machine."""
    active = [each for each in rules if not each.disabled and opens_ssh(_entries(each))]
    about = [each for each in active if found is None or _concerns(each, found)]
    denying = [each for each in about if each.denied]
    return tuple(each for each in about if each.allowed and _is_open(each, denying, found))


def _is_open(rule: FirewallRule, denying: Iterable[FirewallRule], found: Slice | None) -> bool:
    above = [
        each
        for each in denying
        if each.priority <= rule.priority and (found is not None or _has_targets_of(each, rule))
    ]
    return is_world(rule.source_ranges, [text for each in above for text in each.source_ranges])


def _has_targets_of(deny: FirewallRule, allow: FirewallRule) -> bool:
    """Tell whether a rule that denies is for every machine that the other one is for."""
    if deny.network != allow.network:
        return False
    if not deny.target_tags and not deny.target_service_accounts:
        return True
    tags, accounts = set(allow.target_tags), set(allow.target_service_accounts)
    return bool(tags | accounts) and (
        tags <= set(deny.target_tags) and accounts <= set(deny.target_service_accounts)
    )


def _concerns(rule: FirewallRule, found: Slice) -> bool:
    if rule.disabled or rule.network != (found.network or "default"):
        return False
    if not opens_ssh(_entries(rule)):
        return False
    if rule.target_service_accounts:
        return found.service_account in rule.target_service_accounts
    return not rule.target_tags or bool(set(rule.target_tags) & set(found.tags))


def _entries(rule: FirewallRule) -> tuple[str, ...]:
    return rule.denied or rule.allowed


def _names(rule: FirewallRule, source: str) -> bool:
    """Return True if a rule is about an address or range: all of it, if the rule allows."""
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
    """Return the networks of one version, each address once; what cannot be read admits nobody."""
    networks: list[Any] = []
    for text in ranges:
        with suppress(BadInput):
            networks.append(parse_range(text))
    return [*ipaddress.collapse_addresses(each for each in networks if each.version == version)]
