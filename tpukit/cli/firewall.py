"""`tpukit firewall`: the one rule that SSH to a slice needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tpukit import firewall
from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import verb
from tpukit.console import View
from tpukit.errors import BadInput, NotFound, TpukitError
from tpukit.models import FirewallRule

AllowWorld = Annotated[bool, typer.Option("--allow-world", help="Let 0.0.0.0/0 be a range.")]
All = Annotated[bool, typer.Option("--all", help="All ingress rules, not only those of tpukit.")]

RuleOwner = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a slice, or of a rule of tpukit's.")
]


def application() -> typer.Typer:
    app = typer.Typer(help="Show, open and close the way to port 22.")
    for function in (apply, list_rules, remove):
        app.command(function.__name__.partition("_")[0])(verb(function))
    return app


def apply(
    toolkit: Toolkit,
    name: flag.Name,
    source_ranges: flag.SourceRanges = None,
    allow_world: AllowWorld = False,
) -> View:
    """Let your own address reach port 22 of a slice.

    With --source-range the addresses that it names. What the rule admits already stays.

    Examples:
      tpukit firewall apply demo
      tpukit firewall apply demo --source-range 35.235.240.0/20
    """
    from tpukit import bootstrap

    ranges = firewall.check_ranges(source_ranges or (), world=allow_world)
    _, rule, changed = bootstrap.open_firewall(
        toolkit.means(ranges), toolkit.find(name), allow_world
    )
    toolkit.console.say(f"rule {rule.name}: {'changed' if changed else 'already there'}")
    return views.rules([rule])


def list_rules(toolkit: Toolkit, everything: All = False) -> View:
    """List the firewall rules that tpukit has made.

    With --all every ingress rule. A rule whose slice was deleted by another tool is warned of.

    Examples:
      tpukit firewall list
      tpukit firewall list --all
    """
    rules = toolkit.firewall.list()
    ours = [rule for rule in rules if rule.name.startswith(firewall.PREFIX)]
    return views.rules_and_left_over(rules if everything else ours, _left_over(toolkit, ours))


def remove(toolkit: Toolkit, name: RuleOwner) -> View:
    """Remove the rule of a slice.

    The slice may be gone already. Where several had its name, name the rule.

    Examples:
      tpukit firewall remove demo
      tpukit firewall remove tpukit-demo-1a2b3c
    """
    rules = toolkit.firewall.list()
    by_name = any(rule.name == name and firewall.is_ours(rule) for rule in rules)
    rule = name if by_name else _rule_of(toolkit, rules, name)
    removed = firewall.remove(toolkit.firewall, rule)
    toolkit.console.say(f"rule {rule}: {'removed' if removed else 'not there'}")
    return View({"removed": removed, "rule": rule})


def _rule_of(toolkit: Toolkit, rules: Sequence[FirewallRule], name: str) -> str:
    """Return the name of a slice's rule; of a slice that is gone, that of the rule it has left."""
    try:
        return firewall.rule_name(toolkit.find(name))
    except NotFound:
        left = [rule.name for rule in _left_over(toolkit, rules) if firewall.is_for(rule, name)]
        if zone := toolkit.flags.zone.removeprefix("-"):
            exact = firewall.tag(toolkit.settings.require("project"), zone, name)
            left = [each for each in left if each == exact]
        if not left:
            raise
    if len(left) > 1:
        raise BadInput(
            f"several slices {name} have left a rule: {', '.join(left)}",
            fix=f"tpukit firewall remove {left[0]}",
        )
    return left[0]


def _left_over(toolkit: Toolkit, rules: Sequence[FirewallRule]) -> Sequence[FirewallRule]:
    """Return the rules whose slice is gone, none where that cannot be told."""
    if not rules:
        return ()
    unknown = "whose slice is gone cannot be told"
    try:
        listed = toolkit.provider.list("-")
    except TpukitError as error:  # the rules are there to be shown all the same
        toolkit.console.warn(f"{unknown}: {error.summary()}")
        return ()
    if listed.unreachable:
        toolkit.console.warn(f"{unknown}: no answer from {', '.join(listed.unreachable)}")
        return ()
    return firewall.left_over(rules, listed.slices)
