"""`tpukit emulator clock`, `preempt`, `health`, `state`, `reset` and `log`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer
from typer import Argument, Option

from tpukit.cli.local import client
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.console import View
from tpukit.errors import Fix

SliceName = Annotated[str, Argument(metavar="NAME", help="Name of a slice.")]
Vanish = Annotated[
    bool, Option("--vanish", help="Remove the slice instead of leaving it PREEMPTED.")
]
Health = Annotated[str, Argument(metavar="HEALTH", help="HEALTHY, UNHEALTHY_TENSORFLOW, …")]
State = Annotated[str, Argument(metavar="STATE", help="REPAIRING, HIDDEN, READY, …")]
Advance = Annotated[str, Argument(metavar="DURATION", help="Time to add: 90s, 20m, 1h.")]
Speed = Annotated[float, Argument(metavar="FACTOR", help="Speed; 1 is real time, 0 stops it.")]
MethodPattern = Annotated[
    str, Option("--method", metavar="PATTERN", help="Only these API methods: nodes.*.")
]


def clock_application() -> typer.Typer:
    return group("Show and move the emulator's clock.", show, advance, speed)


def show(toolkit: Toolkit) -> View:
    """Show the emulator's time and its speed.

    Example:
      tpukit emulator clock show
    """
    return _clock(client(toolkit.paths).status())


def advance(toolkit: Toolkit, duration: Advance) -> View:
    """Move the clock forward; everything that is due by then happens at once.

    Example:
      tpukit emulator clock advance 20m
    """
    from tpukit.cli.parameters import seconds

    return _clock(client(toolkit.paths).move_clock(advance=seconds(duration)))


def speed(toolkit: Toolkit, factor: Speed) -> View:
    """Let the emulator's time pass faster or slower than real time.

    Example:
      tpukit emulator clock speed 60
    """
    return _clock(client(toolkit.paths).move_clock(speed=factor))


def preempt(toolkit: Toolkit, name: SliceName, vanish: Vanish = False) -> View:
    """Preempt a slice, as Google does with spot slices.

    Examples:
      tpukit emulator preempt demo
      tpukit emulator preempt demo --vanish
    """
    node = client(toolkit.paths).preempt(name, vanish)
    toolkit.console.say(f"{name}: {'gone' if vanish else node['state']}")
    return View({"node": node, "vanished": vanish})


def health(toolkit: Toolkit, name: SliceName, health: Health) -> View:
    """Set a slice's health without changing its state.

    Example:
      tpukit emulator health demo UNHEALTHY_MAINTENANCE
    """
    node = client(toolkit.paths).set_health(name, health)
    return View({"node": node}, rows=[[node["state"], node.get("health", "")]])


def state(toolkit: Toolkit, name: SliceName, state: State) -> View:
    """Set a slice's state, as Google would; its workers follow.

    Example:
      tpukit emulator state demo REPAIRING
    """
    node = client(toolkit.paths).set_state(name, state)
    return View({"node": node}, rows=[[node["state"], node.get("health", "")]])


def reset(toolkit: Toolkit) -> View:
    """Remove all slices, rules, faults and the log, and set the clock to this machine's time.

    Example:
      tpukit emulator reset
    """
    client(toolkit.paths).reset()
    toolkit.console.say("the emulator is empty")
    return View({"reset": True})


def log(toolkit: Toolkit, method: MethodPattern = "*") -> View:
    """List the latest requests, the oldest first.

    Examples:
      tpukit emulator log --method nodes.create
      tpukit emulator log --json
    """
    log = client(toolkit.paths).log()
    requests = [request for request in log if fnmatchcase(request["method"], method)]
    columns = ("TIME", "METHOD", "VERB", "PATH", "STATUS", "CUT")
    rows = [[request[column.lower()] for column in columns] for request in requests]
    return View({"requests": requests}, columns, rows)


def _clock(document: Mapping[str, Any]) -> View:
    clock = {key: document[key] for key in ("time", "speed") if key in document}
    view = View({"clock": clock}, rows=[[value] for value in clock.values()])
    if clock["speed"] != 0:
        return view
    stopped = "the clock stands still: creates and other operations do not end until it runs again"
    resume = Fix.command("tpukit", "emulator", "clock", "speed", "1")
    return replace(view, next=[resume], warnings=[stopped])
