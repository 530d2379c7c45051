"""`tpukit emulator clock`, `preempt`, `health`, `log`: what moves it, and what it served."""

from __future__ import annotations

from collections.abc import Mapping
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
Vanish = Annotated[bool, Option("--vanish", help="Leave nothing, not even a state.")]
Health = Annotated[str, Argument(metavar="HEALTH", help="HEALTHY, UNHEALTHY_TENSORFLOW, …")]
State = Annotated[str, Argument(metavar="STATE", help="REPAIRING, HIDDEN, READY, …")]
Advance = Annotated[str, Argument(metavar="DURATION", help="How far: 90s, 20m, 1h.")]
Speed = Annotated[float, Argument(metavar="FACTOR", help="1 is the pace of real time.")]
MethodPattern = Annotated[
    str, Option("--method", metavar="PATTERN", help="Of API methods: nodes.*.")
]


def clock_application() -> typer.Typer:
    return group("Show and move the emulator's clock.", show, advance, speed)


def show(toolkit: Toolkit) -> View:
    """Show what time it is for the emulator.

    Example:
      tpukit emulator clock show
    """
    return _clock(client(toolkit.paths).status())


def advance(toolkit: Toolkit, duration: Advance) -> View:
    """Move the clock forward; whatever falls due happens at once.

    Example:
      tpukit emulator clock advance 20m
    """
    from tpukit.cli.parameters import seconds

    return _clock(client(toolkit.paths).move_clock(advance=seconds(duration)))


def speed(toolkit: Toolkit, factor: Speed) -> View:
    """Let the emulator's time pass faster than real time; 0 lets it stand still.

    Example:
      tpukit emulator clock speed 60
    """
    return _clock(client(toolkit.paths).move_clock(speed=factor))


def preempt(toolkit: Toolkit, name: SliceName, vanish: Vanish = False) -> View:
    """Take a slice away as Google does with a spot slice.

    Examples:
      tpukit emulator preempt demo
      tpukit emulator preempt demo --vanish
    """
    node = client(toolkit.paths).preempt(name, vanish)
    toolkit.console.say(f"{name}: {'gone' if vanish else node['state']}")
    return View({"node": node, "vanished": vanish})


def health(toolkit: Toolkit, name: SliceName, health: Health) -> View:
    """Give a slice a health; its state stays as it is.

    Example:
      tpukit emulator health demo UNHEALTHY_MAINTENANCE
    """
    node = client(toolkit.paths).set_health(name, health)
    return View({"node": node}, rows=[[node["state"], node.get("health", "")]])


def state(toolkit: Toolkit, name: SliceName, state: State) -> View:
    """Put a slice in a state, as if Google had; its workers go with it.

    Example:
      tpukit emulator state demo REPAIRING
    """
    node = client(toolkit.paths).set_state(name, state)
    return View({"node": node}, rows=[[node["state"], node.get("health", "")]])


def reset(toolkit: Toolkit) -> View:
    """Begin anew: no slices, rules, faults or log, and the time of this machine.

    Example:
      tpukit emulator reset
    """
    client(toolkit.paths).reset()
    toolkit.console.say("the emulator begins anew")
    return View({"reset": True})


def log(toolkit: Toolkit, method: MethodPattern = "*") -> View:
    """List the last requests served, the oldest first.

    Examples:
      tpukit emulator log --method nodes.create
      tpukit emulator log --json
    """
    requests = [each for each in client(toolkit.paths).log() if fnmatchcase(each["method"], method)]
    columns = ("TIME", "METHOD", "VERB", "PATH", "STATUS", "CUT")
    rows = [[each[column.lower()] for column in columns] for each in requests]
    return View({"requests": requests}, columns, rows)


def _clock(document: Mapping[str, Any]) -> View:
    found = {key: document[key] for key in ("time", "speed") if key in document}
    still = (
        "the clock stands still: creates and whatever else takes time do not end until it goes on"
    )
    fix = Fix.command("tpukit", "emulator", "clock", "speed", "1")
    stands = found["speed"] == 0
    return View(
        {"clock": found},
        rows=[[value] for value in found.values()],
        next=[fix] if stands else [],
        warnings=[still] if stands else [],
    )
