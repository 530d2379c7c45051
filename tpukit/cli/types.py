"""`tpukit types`: the accelerator types and where they are offered, from our own table or live."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from tpukit import accelerators
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import type_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

Prefix = Annotated[
    str, Argument(metavar="[PREFIX]", help="Only types that start so: v4, v5e, v6e-16.")
]
Live = Annotated[bool, Option("--live", help="Ask the API, in every zone or in --zone.")]


def types(toolkit: Toolkit, prefix: Prefix = "", live: Live = False) -> View:
    """List accelerator types and their zones.

    Without a prefix it is a line a generation; of one type it is what a chip and a worker of it are
    made of, each figure with its source, and every zone. With --live it is
    what the API offers to your project now, and where our own table says something else.

    Examples:
      tpukit types
      tpukit types v3
      tpukit types v3-8
      tpukit types v6e --zone europe-west4-a
      tpukit types v6e --live
    """
    zone = toolkit.flags.zone
    spelled = accelerators.spelled(prefix)
    if live:
        from tpukit.cli import offers

        return type_views.live_types(
            offers.accelerator_types(toolkit, (zone,) if zone else ()), spelled
        )
    found = [
        each
        for each in accelerators.all_types()
        if each.name.startswith(spelled) and (not zone or zone in each.facts.zones)
    ]
    if not found:
        place = f" in {one_line(zone)}" if zone else ""
        raise BadInput(
            f"there is no accelerator type {one_line(prefix)}{place}".replace("  ", " "),
            fix=Fix.command("tpukit", "types"),
        )
    exact = [each for each in found if each.name == spelled]
    if exact:
        return type_views.one_type(exact[0])
    return type_views.types(found) if spelled or zone else type_views.generations(found)
