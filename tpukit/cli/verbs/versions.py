"""`tpukit versions`: the runtime versions of a zone, compared with our table."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from tpukit import accelerators
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import type_views
from tpukit.console import View

Prefix = Annotated[
    str, Argument(metavar="[TYPE]", help="Leave out versions that are known to be unfit for it.")
]


def versions(toolkit: Toolkit, accelerator_type: Prefix = "") -> View:
    """List the runtime versions of a zone.

    The API accepts every version for every accelerator type. With a wrong version, a slice becomes
    READY without a usable chip. The last column lists the generations with such a report.

    Examples:
      tpukit versions
      tpukit versions v5e --zone us-west4-a
    """
    head = accelerators.spelled(accelerator_type).partition("-")[0]
    if head and head not in accelerators.GENERATIONS:
        accelerators.AcceleratorType.parse(accelerator_type)  # raises, with the nearest names
    toolkit.cloud.check_given("project", "zone")
    zone = toolkit.settings.get("zone")
    return type_views.versions(zone, sorted(toolkit.cloud.provider.runtime_versions(zone)), head)
