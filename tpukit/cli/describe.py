"""`tpukit describe`: everything about one slice."""

from __future__ import annotations

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View


def describe(toolkit: Toolkit, name: flag.Name) -> View:
    """Show one slice, wherever it is.

    Examples:
      tpukit describe demo
      tpukit describe demo --json
    """
    return views.described(toolkit.find(name), toolkit.clock.time(), toolkit.rates)
