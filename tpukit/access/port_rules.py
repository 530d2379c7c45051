"""Openings beside port 22, for what was brought to workers: one rule a slice and purpose."""

from __future__ import annotations

from collections.abc import Sequence

from tpukit.access import rule_opening, ssh_rule
from tpukit.access.context import Context
from tpukit.cloud.provider import FirewallProvider
from tpukit.errors import NameTaken
from tpukit.models import FirewallRule, Slice


def port_rule(found: Slice, purpose: str, allow: str, ranges: Sequence[str]) -> FirewallRule:
    """Return the rule that lets these ranges reach ports (`udp:60000-61000`) of a slice."""
    return FirewallRule(
        name=ssh_rule.purpose_name(found, purpose),
        network=found.network or "default",
        source_ranges=tuple(ranges),
        target_tags=(ssh_rule.rule_name(found),),
        allowed=(allow,),
        description=f"{purpose} of projects/{found.project}/locations/{found.zone}/nodes/"
        f"{found.name}, made by tpukit and removed with the slice",
    )


def open_ports(
    context: Context, found: Slice, purpose: str, allow: str, ranges: Sequence[str]
) -> bool:
    """Let these ranges reach the ports, beside those that may already; return whether that is new.

    Raises:
        NameTaken: somebody has made that rule into another one.
        TpukitError: rules may not be made, or the call failed.
    """
    firewall = context.firewall.of(found.network_project)
    found = rule_opening.tied(context, found)
    wanted = port_rule(found, purpose, allow, ranges)
    present = _present(firewall, wanted.name)
    if present is None:
        firewall.insert(wanted)()
        return True
    if present.disabled or present.allowed != wanted.allowed or present.network != wanted.network:
        raise NameTaken(
            f"firewall rule {present.name} exists and is not as tpukit makes it",
            fix=ssh_rule.close_command(present, found.project),
        )
    new = [each for each in ranges if each not in present.source_ranges]
    if new:
        firewall.replace_source_ranges(present.name, (*present.source_ranges, *new))()
    return bool(new)


def close_ports(
    context: Context, found: Slice, purpose: str, ranges: Sequence[str] | None = None
) -> bool:
    """Let these ranges, or everybody, reach the ports no longer; return whether they could."""
    firewall = context.firewall.of(found.network_project)
    present = _present(firewall, ssh_rule.purpose_name(found, purpose))
    if present is None:
        return False
    gone = set(present.source_ranges if ranges is None else ranges)
    left = tuple(each for each in present.source_ranges if each not in gone)
    if left:
        firewall.replace_source_ranges(present.name, left)()
        return left != present.source_ranges
    return ssh_rule.remove(firewall, present.name)


def _present(firewall: FirewallProvider, name: str) -> FirewallRule | None:
    return next((rule for rule in firewall.list() if rule.name == name), None)
