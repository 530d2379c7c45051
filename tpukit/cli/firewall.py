"""`tpukit firewall`: the one rule that SSH to a slice needs."""

from __future__ import annotations

from typing import Annotated

import typer

from tpukit import firewall
from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import verb
from tpukit.console import View

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
    """Let your own address, or --source-range, reach port 22 of a slice's workers.

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
    """List tpukit's firewall rules, or with --all every ingress rule.

    Example:
      tpukit firewall list --all
    """
    rules = toolkit.firewall.list()
    return views.rules(
        [rule for rule in rules if everything or rule.name.startswith(firewall.PREFIX)]
    )


def remove(toolkit: Toolkit, name: RuleOwner) -> View:
    """Remove the rule of a slice, or a rule by its own name where the slice is gone already.

    Examples:
      tpukit firewall remove demo
      tpukit firewall remove tpukit-demo-1a2b3c
    """
    rules = {rule.name for rule in toolkit.firewall.list()}
    rule = name if name in rules else firewall.rule_name(toolkit.find(name))
    removed = firewall.remove(toolkit.firewall, rule)
    toolkit.console.say(f"rule {rule}: {'removed' if removed else 'not there'}")
    return View({"removed": removed, "rule": rule})
