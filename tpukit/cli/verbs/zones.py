"""`tpukit zones`: zones with their accelerator types, from the API and from our table."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from tpukit import accelerators
from tpukit.cli import listings
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import type_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

Prefix = Annotated[
    str, Argument(metavar="[PREFIX]", help="Start of types that the zones offer: v4, v6e-16.")
]


def zones(toolkit: Toolkit, prefix: Prefix = "") -> View:
    """List the zones that the API shows you, with the generations that they offer.

    An offered type may lack quota or capacity. The last column compares the API with our table.

    Examples:
      tpukit zones
      tpukit zones v5litepod-16
    """
    wanted = (toolkit.flags.zone,) if toolkit.flags.zone else ()
    offered = listings.accelerator_types(toolkit.cloud, wanted)
    spelled = accelerators.spelled(prefix)
    exact = spelled in offered.names
    rows = {
        zone: frozenset(
            name for name in names if name == spelled or (not exact and name.startswith(spelled))
        )
        for zone, names in sorted(offered.by_zone.items())
    }
    shown = {zone: names for zone, names in rows.items() if names or not spelled}
    if not shown and not offered.silent:
        raise BadInput(
            f"no zone offers {one_line(prefix)} to this project",
            fix=Fix.command("tpukit", "types", "--live"),
        )
    return type_views.zones(shown, offered)
