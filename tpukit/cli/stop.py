"""`tpukit stop`: stop a slice and wait until it is STOPPED."""

from __future__ import annotations

from tpukit import lifecycle
from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View


def stop(toolkit: Toolkit, name: flag.Name, timeout: flag.Timeout = "20m") -> View:
    """Stop a slice and wait until it is STOPPED.

    Its disks stay.

    Example:
      tpukit stop demo
    """
    deadline = toolkit.deadline(flag.seconds(timeout))
    found = toolkit.find(name)
    result = lifecycle.stop(
        toolkit.provider,
        found,
        deadline=deadline,
        on_state=lambda state: toolkit.console.say(f"{name}: {state}"),
    )
    return views.one_slice(result)
