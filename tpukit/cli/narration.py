"""Tells the story of the main job on stderr: one line a stage or step, with the time it took."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tpukit.clock import Clock
from tpukit.console import Console

if TYPE_CHECKING:
    from tpukit.bootstrap import Progress
    from tpukit.provision.apply import ProvisionEvent


def narrate(console: Console, clock: Clock) -> Progress:
    """Return who listens to the stages and to the workers' steps."""
    from tpukit.bootstrap import Progress

    tell = _teller(console, clock)
    return Progress(on_stage=tell, on_provision=_steps(console, tell))


def narrate_steps(console: Console, clock: Clock) -> Callable[[ProvisionEvent], None]:
    """Return who listens to the steps where provisioning is the whole command."""
    return _steps(console, _teller(console, clock))


def _teller(console: Console, clock: Clock) -> Callable[[str, str], None]:
    started = clock.monotonic()

    def tell(stage: str, line: str) -> None:
        console.say(f"{clock.monotonic() - started:7.1f} s  {stage:<10} {line}")

    return tell


def _steps(console: Console, tell: Callable[[str, str], None]) -> Callable[[ProvisionEvent], None]:
    """Tell what changes on every worker, and the lines of worker 0's long steps; all if verbose."""

    def hear(event: ProvisionEvent) -> None:
        line = f"worker {event.worker}: {event.step}: {event.text}"
        quiet = event.text.startswith("unchanged") if event.kind == "finished" else event.worker
        if event.kind == "started" or quiet:
            console.detail(f"{'':12}{line}")
        else:
            tell("provision", line)

    return hear
