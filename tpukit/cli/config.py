"""`tpukit config`: the settings in force, each with the place it came from."""

from __future__ import annotations

import typer

from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.console import View


def application() -> typer.Typer:
    return group("Show settings and where they come from.", explain)


def explain(toolkit: Toolkit) -> View:
    """Show every setting with its value and its origin.

    Examples:
      tpukit config explain
      tpukit --local config explain --json
    """
    settings = toolkit.settings.explain()
    document = {each.name: {"value": each.value, "origin": each.origin} for each in settings}
    rows = [[each.name, each.value, each.origin] for each in settings]
    return View({"settings": document}, ("SETTING", "VALUE", "ORIGIN"), rows)
