"""`tpukit zones`: zones with their accelerator types, from the API and from our table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

from typer import Argument, Option

from tpukit import accelerators
from tpukit.accelerators import AcceleratorType
from tpukit.cli import listings
from tpukit.cli.parameters import file_bytes
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import type_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import counted, one_line

Prefix = Annotated[
    str, Argument(metavar="[PREFIX]", help="Start of types that the zones offer: v4, v6e-16.")
]


Capacity = Annotated[
    str,
    Option("--capacity", metavar="TYPE", help="Show the results of earlier requests for a type."),
]
From = Annotated[
    str, Option("--from", metavar="FILE", help="Add a colleague's --capacity TYPE --json first.")
]


def zones(toolkit: Toolkit, prefix: Prefix = "", capacity: Capacity = "", from_: From = "") -> View:
    """List the zones that the API shows you, with the generations that they offer.

    An offered type may lack quota or capacity. The last column compares the API with our table.
    --capacity calls no API: it lists this machine's earlier requests for a type, and the answers.
    --anywhere starts with the places that gave a slice in the past week, and ends with those that
    refused in the past day.

    Examples:
      tpukit zones
      tpukit zones v5litepod-16
      tpukit zones --capacity v6e-8
      tpukit zones --capacity v6e-8 --from ada.json
    """
    if capacity:
        return _capacity(toolkit, AcceleratorType.parse(accelerators.spelled(capacity)), from_)
    if from_:
        raise BadInput("--from needs --capacity", fix=Fix(note="add --capacity TYPE"))
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
        if not any(type_.name.startswith(spelled) for type_ in accelerators.all_types()):
            AcceleratorType.parse(prefix)  # its error names the nearest type
        raise BadInput(
            f"no zone offers {one_line(prefix)} to this project",
            fix=Fix.command("tpukit", "types", "--live"),
        )
    return type_views.zones(shown, offered)


def _capacity(toolkit: Toolkit, accelerator: AcceleratorType, file: str) -> View:
    from tpukit.slices.capacity_memory import by_place, parsed

    memory = toolkit.cloud.capacity
    if file:
        try:
            document = json.loads(file_bytes(file, "--from", 1 << 22) or b"")
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{one_line(file)} is not a JSON document") from error
        theirs = document.get("attempts", []) if isinstance(document, Mapping) else []
        known = {*memory.attempts()}
        new = [
            one for one in parsed(theirs if isinstance(theirs, list) else []) if one not in known
        ]
        memory.add(new)
        toolkit.console.say(f"{counted(len(new), 'new attempt')} from {one_line(file)}")
    attempts = memory.attempts(accelerator.name)
    return type_views.capacity(by_place(attempts), attempts, toolkit.clock.time())
