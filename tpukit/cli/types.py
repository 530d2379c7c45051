"""`tpukit types`: the accelerator types and where they are offered, from our own table."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from tpukit import accelerators
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View

Prefix = Annotated[str, Argument(metavar="[PREFIX]", help="Only types that start so: v4, v6e-.")]


def types(toolkit: Toolkit, prefix: Prefix = "") -> View:
    """List accelerator types and their zones.

    Examples:
      tpukit types v3
      tpukit types v6e --zone europe-west4-a
    """
    zone = toolkit.flags.zone
    return views.types(
        each
        for each in accelerators.all_types()
        if each.name.startswith(prefix) and (not zone or zone in each.facts.zones)
    )
