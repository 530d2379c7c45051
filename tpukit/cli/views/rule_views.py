"""Firewall rules as tables and documents, with warnings about rules open to the world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpukit.console import View
from tpukit.errors import Fix, SecurityRefusal

if TYPE_CHECKING:
    from tpukit.access.rule_opening import Opening
    from tpukit.models import FirewallRule


def rules(shown: Sequence[FirewallRule]) -> View:
    """Show rules, one in a row."""
    rows = [
        [
            rule.name,
            rule.network,
            ",".join(rule.allowed) or f"denies {','.join(rule.denied)}",
            ",".join(rule.source_ranges),
            _targets(rule) or "(every worker)",
        ]
        for rule in shown
    ]
    columns = ("NAME", "NETWORK", "ALLOWS", "FROM", "TAGS")
    return View({"rules": [rule.document() for rule in shown]}, columns, rows)


def listed_rules(
    shown: Sequence[FirewallRule],
    left: Sequence[FirewallRule],
    exposing: Sequence[FirewallRule],
    project: str,
) -> View:
    """Show rules; warn about rules without a slice (`left`) and rules open to the world."""
    names = [rule.name for rule in left]
    gone = [f"the slice of rule {name} is gone" for name in names]
    remove = [Fix.command("tpukit", "firewall", "remove", name) for name in names]
    return with_exposing(
        replace(rules(shown), warnings=gone, next=remove), exposing, project, left_over=names
    )


def audit(exposing: Sequence[FirewallRule], project: str) -> View:
    """Show the rules that are open to the world; the exit status is 9 if there are any."""
    status = SecurityRefusal.exit_code if exposing else 0
    return with_exposing(replace(rules(exposing), status=status), exposing, project)


def opened(openings: Sequence[Opening], project: str) -> View:
    """Show the rules that let us in, and warn about rules open to the world."""
    exposing = {rule.name: rule for opening in openings for rule in opening.exposing}
    shown = rules([opening.rule for opening in openings])
    return with_exposing(shown, tuple(exposing.values()), project)


def with_exposing(shown: View, exposing: Sequence[FirewallRule], project: str, **more: Any) -> View:
    """Add a warning for each rule that is open to the world, and the command that closes it."""
    from tpukit.access.ssh_rule import close_command

    return replace(
        shown,
        document={**shown.document, **more, "open_to_world": [rule.name for rule in exposing]},
        warnings=(*shown.warnings, *map(_exposure, exposing)),
        next=(*shown.next, *(close_command(rule, project) for rule in exposing)),
    )


def _exposure(rule: FirewallRule) -> str:
    whom = f"the machines of {_targets(rule)}" if _targets(rule) else "every machine"
    return f"rule {rule.name} lets the whole world reach port 22 of {whom} on {rule.network}"


def _targets(rule: FirewallRule) -> str:
    return ",".join((*rule.target_tags, *rule.target_service_accounts))
