"""What one command works with: the values that all have, and a part for each subject.

Only `cli` knows these parts: other rooms receive the values and clients that they need.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tpukit import console as consoles
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.parameters import EXTERNAL, RouteFlags
from tpukit.cli.toolkit.questions import Questions
from tpukit.cli.toolkit.sightings import Sightings
from tpukit.clock import Clock, Deadline, SystemClock
from tpukit.console import Console
from tpukit.errors import BadInput, Fix
from tpukit.paths import Paths

if TYPE_CHECKING:
    from tpukit.cli.toolkit.cloud import Cloud
    from tpukit.cli.toolkit.display import Display
    from tpukit.cli.toolkit.known_slices import KnownSlices
    from tpukit.cli.toolkit.project_files import ProjectFiles
    from tpukit.cli.toolkit.reach import Reach
    from tpukit.google.provider import Note
    from tpukit.settings.resolution import Settings


@dataclass(eq=False)
class Toolkit:
    """The values and parts of one command. Each part is imported and made when it is first used."""

    flags: GlobalFlags
    route: RouteFlags = EXTERNAL
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Clock = field(default_factory=SystemClock)
    #: Closed when the command ends; toolkits of other routes share it.
    closing: ExitStack = field(default_factory=ExitStack)
    #: True in a dry run: writes are recorded instead of sent.
    rehearsing: bool = False
    #: True if the chosen profile need not exist, because this command makes it.
    makes_profile: bool = False
    seen: Sightings = field(default_factory=Sightings)

    def by(self, route: RouteFlags) -> Toolkit:
        """Return a toolkit that reaches workers by another route."""
        route.check()
        return replace(self, route=route) if route != self.route else self

    def rehearsal(self, note: Note, full: int = 0) -> Toolkit:
        """Return a toolkit that passes writes to `note` and sends none; see `rehearsed`."""
        from tpukit.google.rehearsal import RehearsedClock

        other = replace(self, clock=RehearsedClock(self.clock), rehearsing=True)
        cloud = self.cloud.rehearsal(other.clock, note, full)
        other.__dict__.update(console=self.console, settings=self.settings, cloud=cloud)
        return other

    def deadline(self, seconds: float) -> Deadline:
        """Return the moment so many seconds from now."""
        return Deadline.after(self.clock, seconds)

    @cached_property
    def console(self) -> Console:
        return consoles.for_this_process(
            as_json=self.flags.as_json,
            output=self.flags.output,
            color=self.flags.color,
            quiet=self.flags.quiet,
            verbose=self.flags.verbose,
            complete=lambda fix: self.flags.complete(fix, self.environ, self.route.words),
        )

    @cached_property
    def paths(self) -> Paths:
        return Paths.from_environment(self.environ)

    @property
    def own_file(self) -> Path:
        """The file with the user's own settings, which the chosen profile decides."""
        from tpukit.settings.user_file import own_file

        return own_file(self.paths, self.flags.chosen_profile(self.environ))

    @cached_property
    def settings(self) -> Settings:
        from tpukit.settings.resolution import Settings

        flags = {"project": self.flags.project or None, "zone": self.flags.zone or None}
        folder, profile = working_folder(), self.flags.chosen_profile(self.environ)
        return Settings.load(
            *(flags, self.environ, folder, self._overlay, profile), may_be_new=self.makes_profile
        )

    @property
    def _overlay(self) -> Mapping[str, str] | None:
        if not self.flags.is_local(self.environ):
            return None
        from tpukit.cli.local import ensure_environment

        return ensure_environment(self.paths, self.console)

    @property
    def questions(self) -> Questions:
        return Questions(self.flags, self.environ)

    @cached_property
    def display(self) -> Display:
        from tpukit.cli.toolkit.display import Display

        return Display(self.console, self.clock, self.closing, self.paths.logs, self.rehearsing)

    @cached_property
    def project_files(self) -> ProjectFiles:
        from tpukit.cli.toolkit.project_files import ProjectFiles

        home = Path(self.environ["HOME"]) if self.environ.get("HOME") else None
        return ProjectFiles(self.paths, working_folder(), home)

    @cached_property
    def cloud(self) -> Cloud:
        from tpukit.cli.toolkit.cloud import Cloud

        return Cloud(self.settings, self.paths, self.environ, self.clock, self.console.say)

    @cached_property
    def slices(self) -> KnownSlices:
        from tpukit.cli.toolkit.known_slices import KnownSlices

        return KnownSlices(self.cloud, self.flags.zone, self.seen, self.display, self.console.warn)

    @cached_property
    def reach(self) -> Reach:
        from tpukit.cli.toolkit.reach import Reach

        return Reach(self.cloud, self.slices, self.route, self.questions, self.console.say)


def working_folder() -> Path:
    """Return the working folder; raise `BadInput` if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        why = Fix(note="cd to a folder that exists")
        raise BadInput("the working folder was deleted", fix=why) from error
