"""`tpukit list`: list the slices of the project, in all zones or in one."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from typer import Option

from tpukit.cli.parameters import Labels, words
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.slices.find import SORTED, chosen
from tpukit.text import one_line

State = Annotated[str, Option("--state", metavar="STATE,…", help="Only slices in these states.")]
Columns = Annotated[
    str, Option(metavar="COLUMN,…", help="Only these columns, in this order: name,state,cost.")
]
Sort = Annotated[str, Option("--sort", metavar="FIELD", help=f"{', '.join(SORTED)}.")]


def list_slices(
    toolkit: Toolkit,
    label: Labels = "",
    state: State = "",
    sort: Sort = "name",
    columns: Columns = "",
) -> View:
    """List the slices of all zones, or of --zone.

    Examples:
      tpukit list
      tpukit list --zone us-central1-a --json
      tpukit list --label tpukit-owner=ada --state READY,CREATING --sort created
      tpukit list --columns name,zone,left -o tsv
    """
    if sort not in SORTED:
        raise BadInput(
            f"slices cannot be sorted by {one_line(sort)}",
            fix=Fix(note=f"--sort {' or '.join(SORTED)}"),
        )
    chosen_columns = [column.upper() for column in words(columns)]
    if unknown := [column for column in chosen_columns if column not in slice_views.COLUMNS]:
        raise BadInput(
            f"list has no column {one_line(unknown[0])}",
            fix=Fix(note=f"--columns {','.join(slice_views.COLUMNS).lower()}"),
        )
    zone = toolkit.flags.zone or "-"
    listed = toolkit.cloud.provider.list(zone)
    toolkit.slices.name_hints.saw(slice_.name for slice_ in listed.slices)
    shown = listed._replace(slices=chosen(listed.slices, words(label), words(state), sort))
    others = toolkit.cloud.journal.other_projects(toolkit.settings.require("project"))
    made_there = "tpukit has also made slices in that project"
    elsewhere = [
        Fix.command("tpukit", "list", "--project", other, note=made_there) for other in others
    ]
    if zone != "-" and not listed.slices:
        count = len(toolkit.cloud.provider.list("-").slices)
        toolkit.console.say(f"no slices in {one_line(zone)}, {count} elsewhere")
    now, rates = toolkit.cloud.provider.now(), toolkit.cloud.rates
    return replace(slice_views.slices(shown, now, rates, chosen_columns), next=elsewhere)
