"""`tpukit versions`: the runtime versions of a zone, with what our own table says of each."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from tpukit import accelerators
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import type_views
from tpukit.console import View

Prefix = Annotated[
    str, Argument(metavar="[TYPE]", help="Only those that are not known to leave it without chips.")
]


def versions(toolkit: Toolkit, accelerator_type: Prefix = "") -> View:
    """List the runtime versions of a zone.

    The API accepts each of them for every accelerator type. With a wrong one a slice becomes READY
    without a usable chip; beside each stands for which generations that is known.

    Examples:
      tpukit versions
      tpukit versions v5e --zone us-west4-a
    """
    head = accelerators.spelled(accelerator_type).partition("-")[0]
    if head and head not in accelerators.GENERATIONS:
        accelerators.AcceleratorType.parse(accelerator_type)  # says what is near it
    toolkit.check_given("project", "zone")
    zone = toolkit.settings.get("zone")
    return type_views.versions(zone, sorted(toolkit.provider.runtime_versions(zone)), head)
