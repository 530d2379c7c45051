"""`tpukit create`: make sure that a slice exists and is READY."""

from __future__ import annotations

from tpukit.accelerators import AcceleratorType
from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.request import DEFAULTS, RequestFlags, slice_request
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import Fix
from tpukit.slices.ensure import ensure


def create(
    toolkit: Toolkit,
    accelerator_type: flag.AcceleratorTypeName,
    name: flag.OptionalName = "",
    timeout: flag.Timeout = "30m",
    options: RequestFlags = DEFAULTS,
) -> View:
    """Make sure that a slice exists and is READY.

    Examples:
      tpukit create v3-8 demo --zone us-central1-a
      tpukit create v6e-4 demo --spot --labels team=vision
    """
    from tpukit.access.key import with_access

    accelerator = AcceleratorType.parse(accelerator_type)
    deadline = toolkit.deadline(flag.seconds(timeout))
    request = slice_request(toolkit, accelerator, name, options)
    ensured = ensure(
        toolkit.provider,
        with_access(request, toolkit.context()),
        deadline=deadline,
        journal=toolkit.journal,
        on_state=toolkit.say_state(request.name),
    )
    found = ensured.slice
    words = ("tpukit", "up", found.accelerator_type, found.name, "--zone", found.zone)
    return views.one_slice(found, extra={"created": ensured.created}, next=(Fix(words),))
