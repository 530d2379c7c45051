"""`tpukit firewall`: the one rule that SSH to a slice needs."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from tpukit.access import packet_filter, rule_opening, ssh_rule
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.cli.views import rule_views
from tpukit.console import View

AllowWorld = Annotated[bool, Option("--allow-world", help="Let 0.0.0.0/0 be a range.")]
All = Annotated[bool, Option("--all", help="All ingress rules, not only those of tpukit.")]

RuleOwner = Annotated[
    str, Argument(metavar="NAME", help="Name of a slice, or of a rule of tpukit's.")
]


def application() -> typer.Typer:
    return group("Show, open and close the way to port 22.", apply, list_rules, audit, remove)


@flag.connecting
def apply(
    toolkit: Toolkit,
    name: flag.Name,
    source_ranges: flag.SourceRanges = None,
    allow_world: AllowWorld = False,
) -> View:
    """Let your own address reach port 22 of a slice.

    With --iap, the rule admits Identity-Aware Proxy instead; with --jump, that worker; with
    --source-range, those addresses. The rule keeps the addresses it already admits, except earlier
    ones of yours.

    Examples:
      tpukit firewall apply demo
      tpukit firewall apply demo --iap
    """
    ranges = ssh_rule.check_ranges(source_ranges or (), world=allow_world)
    context, opened = toolkit.reach.context(ranges), []
    for slice_ in toolkit.slices.find_named(name):
        slice_, opening = rule_opening.open_for(context, slice_, allow_world)
        toolkit.console.say(f"rule {opening.rule.name}: {opening.summary}")
        opened.append(opening)
    return rule_views.opened(opened, slice_.network_project or slice_.project)


def list_rules(toolkit: Toolkit, everything: All = False) -> View:
    """List the firewall rules of tpukit, or all ingress rules with --all.

    It warns about rules of slices that another tool has deleted, and about all rules that let the
    whole world reach port 22.

    Examples:
      tpukit firewall list
      tpukit firewall list --all
    """
    rules = toolkit.cloud.firewall.list()
    ours = [rule for rule in rules if rule.name.startswith(ssh_rule.PREFIX)]
    project = toolkit.settings.require("project")
    gone = [rule for _, rule in toolkit.slices.cleanup.left_over()]
    exposing = packet_filter.open_to_world(rules)
    return rule_views.listed_rules(rules if everything else ours, gone, exposing, project)


def audit(toolkit: Toolkit) -> View:
    """List every rule of the project that lets the whole world reach port 22.

    The exit status is 9 if there is one. The audit considers denying rules and priorities, but not
    the firewall policies of networks and organisations.

    Examples:
      tpukit firewall audit
      tpukit firewall audit --project my-host-project --json
    """
    exposing = packet_filter.open_to_world(toolkit.cloud.firewall.list())
    return rule_views.audit(exposing, toolkit.settings.require("project"))


def remove(toolkit: Toolkit, name: RuleOwner) -> View:
    """Remove the rule of a slice.

    The slice may be gone already. If several slices had its name, give the name of the rule.

    Examples:
      tpukit firewall remove demo
      tpukit firewall remove tpukit-demo-1a2b3c
    """
    rules, rule = toolkit.slices.cleanup.rule_of(name, toolkit.flags.zone.removeprefix("-"))
    removed = ssh_rule.remove(rules, rule)
    toolkit.console.say(f"rule {rule}: {'removed' if removed else 'not there'}")
    return View({"removed": removed, "rule": rule})
