"""`tpukit stop`: stop a slice and wait until it is STOPPED."""

from __future__ import annotations

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.slices import change


def stop(toolkit: Toolkit, name: flag.Name, timeout: flag.Timeout = "20m") -> View:
    """Stop a slice and wait until it is STOPPED.

    Its disks stay.

    Example:
      tpukit stop demo
    """
    deadline, on_state = toolkit.deadline(flag.seconds(timeout)), toolkit.say_state(name)
    found = toolkit.find(name)
    result = change.stop(toolkit.provider, found, deadline=deadline, on_state=on_state)
    return views.one_slice(result)
