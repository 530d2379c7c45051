"""The display of a command's progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tpukit.cli.stages import Stages, timed
from tpukit.clock import Clock
from tpukit.console import Console


@dataclass(eq=False)
class Display:
    """Shows stages until the command ends; none of a dry run."""

    console: Console
    clock: Clock
    closing: ExitStack
    #: The folder of the main jobs' log files.
    logs: Path
    rehearsing: bool

    @cached_property
    def stages(self) -> Stages:
        """Shows the slices that this command waits for, one stage each."""
        return self.closing.enter_context(Stages(self.console, self.clock))

    def job_stages(
        self, name: str, hint: str = "", expected: Mapping[str, float] | None = None
    ) -> Stages:
        """Return the display for the main job on a slice; the log file has the slice's name."""
        log = self.logs / f"{name}.log"
        stages = Stages(self.console, self.clock, timed, log, hint, expected)
        return self.closing.enter_context(stages)

    def say_state(self, name: str) -> Callable[[str], None]:
        """Return a function that shows each new state of a slice."""
        return lambda state: None if self.rehearsing else self.stages.say(name, state)
