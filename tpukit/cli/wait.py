"""`tpukit wait`: wait for a state, and change nothing."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.slices import change

State = Annotated[str, Option("--for", metavar="STATE", help="ready or stopped.")]


def wait(
    toolkit: Toolkit, name: flag.Name, state: State = "ready", timeout: flag.Timeout = "20m"
) -> View:
    """Wait until a slice is in a state.

    When the wait ends early, the slice stays.

    Example:
      tpukit wait demo --for ready --timeout 20m
    """
    if state.lower() not in ("ready", "stopped"):
        raise BadInput(f"cannot wait for {state!r}", fix=Fix(note="--for ready, or --for stopped"))
    deadline, on_state = toolkit.deadline(flag.seconds(timeout)), toolkit.say_state(name)
    found = toolkit.find(name, deadline)
    result = change.wait(
        toolkit.provider, found, state.upper(), deadline=deadline, on_state=on_state
    )
    return views.one_slice(result)
