"""`tpukit wait`: wait for a state, and change nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from tpukit import lifecycle
from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput

State = Annotated[str, typer.Option("--for", metavar="STATE", help="ready or stopped.")]


def wait(
    toolkit: Toolkit, name: flag.Name, state: State = "ready", timeout: flag.Timeout = "20m"
) -> View:
    """Wait until a slice is in a state.

    When the wait ends early, the slice stays.

    Example:
      tpukit wait demo --for ready --timeout 20m
    """
    if state.lower() not in ("ready", "stopped"):
        raise BadInput(f"cannot wait for {state!r}", fix="--for ready, or --for stopped")
    result = lifecycle.wait(
        toolkit.provider,
        toolkit.find(name),
        state.upper(),
        deadline=toolkit.deadline(flag.seconds(timeout)),
        on_state=lambda seen: toolkit.console.say(f"{name}: {seen}"),
    )
    return views.one_slice(result)
