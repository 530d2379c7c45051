"""`tpukit describe`: everything about one slice."""

from __future__ import annotations

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View


def describe(toolkit: Toolkit, name: flag.OnlyName = flag.LEFT_OUT) -> View:
    """Show one slice.

    Examples:
      tpukit describe demo
      tpukit describe demo --json
    """
    return slice_views.described(
        toolkit.slices.find(name), toolkit.cloud.provider.now(), toolkit.cloud.rates
    )
