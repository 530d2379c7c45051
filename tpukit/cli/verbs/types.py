"""`tpukit types`: accelerator types and their zones, from our table or from the API."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from tpukit import accelerators
from tpukit.accelerators import AcceleratorType
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import type_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

Prefix = Annotated[str, Argument(metavar="[PREFIX]", help="Start of the types: v4, v5e, v6e-16.")]
Live = Annotated[bool, Option("--live", help="Ask the API, in every zone or in --zone.")]


def types(toolkit: Toolkit, prefix: Prefix = "", live: Live = False) -> View:
    """List accelerator types and their zones.

    Without a prefix, each line is a generation. For a single type, it shows the hardware of a chip
    and of a worker, with the source of each figure, and all zones. With --live, it shows the types
    that the API offers to your project now, and the differences to our table.

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
        from tpukit.cli import listings

        return type_views.live_types(
            listings.accelerator_types(toolkit.cloud, (zone,) if zone else ()), spelled
        )
    matching = [
        accelerator
        for accelerator in accelerators.all_types()
        if accelerator.name.startswith(spelled) and (not zone or zone in accelerator.facts.zones)
    ]
    if not matching:
        if not zone:
            AcceleratorType.parse(prefix)  # its error names the nearest type
        place = f" in {one_line(zone)}" if zone else ""
        raise BadInput(
            f"there is no accelerator type {one_line(prefix)}{place}".replace("  ", " "),
            fix=Fix.command("tpukit", "types"),
        )
    exact = [accelerator for accelerator in matching if accelerator.name == spelled]
    if exact:
        return type_views.one_type(exact[0])
    return type_views.types(matching) if spelled or zone else type_views.generations(matching)
