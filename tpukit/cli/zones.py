"""`tpukit zones`: where accelerator types are offered, by the API and by our own table."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from tpukit import accelerators
from tpukit.cli import offers
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import type_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

Prefix = Annotated[
    str, Argument(metavar="[PREFIX]", help="Only zones with types that start so: v4, v6e-16.")
]


def zones(toolkit: Toolkit, prefix: Prefix = "") -> View:
    """List the zones that the API shows you, and what they offer.

    What is offered promises neither quota nor capacity. Beside it stands what our own table says.

    Examples:
      tpukit zones
      tpukit zones v5litepod-16
    """
    wanted = (toolkit.flags.zone,) if toolkit.flags.zone else ()
    found = offers.accelerator_types(toolkit, wanted)
    spelled = accelerators.spelled(prefix)
    exact = spelled in found.names
    rows = {
        zone: frozenset(
            each for each in names if each == spelled or (not exact and each.startswith(spelled))
        )
        for zone, names in sorted(found.by_zone.items())
    }
    shown = {zone: names for zone, names in rows.items() if names or not spelled}
    if not shown and not found.silent:
        raise BadInput(
            f"no zone offers {one_line(prefix)} to this project",
            fix=Fix.command("tpukit", "types", "--live"),
        )
    return type_views.zones(shown, found)
