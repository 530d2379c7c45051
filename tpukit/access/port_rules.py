"""Openings beside port 22, for what was brought to workers: one rule a slice and purpose."""

from __future__ import annotations

from collections.abc import Sequence

from tpukit.access import rule_opening, ssh_rule
from tpukit.access.context import Context
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
    opening = rule_opening.ask_for(firewall, wanted, firewall.list())
    opening.wait()
    return opening.changed


def close_ports(
    context: Context, found: Slice, purpose: str, ranges: Sequence[str] | None = None
) -> bool:
    """Let these ranges, or everybody, reach the ports no longer; return whether they could."""
    firewall = context.firewall.of(found.network_project)
    present = rule_opening.named(firewall.list(), ssh_rule.purpose_name(found, purpose))
    if present is None:
        return False
    gone = set(present.source_ranges if ranges is None else ranges)
    left = tuple(each for each in present.source_ranges if each not in gone)
    if left:
        firewall.replace_source_ranges(present.name, left)()
        return left != present.source_ranges
    return ssh_rule.remove(firewall, present.name)
