"""Hints that work as they stand: they repeat which cloud the command line has chosen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tpukit.cli.toolkit import NO, Flags
from tpukit.console import View
from tpukit.errors import TpukitError
from tpukit.text import quote

#: A command of ours in a hint, up to its verb; those that ask no cloud are left as they are.
_COMMAND = re.compile(r"(?<![\w./-])tpukit (?=[a-z])(?!(config|connections|emulator|types)\b)")


@dataclass(frozen=True)
class Hints:
    """Puts the global flags that say which cloud it is into the commands that a user is told."""

    words: str
    zone: str = ""

    @classmethod
    def of(cls, flags: Flags, environ: Mapping[str, str]) -> Hints:
        """Return the hints of a command line; what the environment says need not be repeated."""
        local = flags.local and environ.get("TPUKIT_LOCAL", "") in NO
        project = ["--project", flags.project] if flags.project else []
        zone = ["--zone", flags.zone] if flags.zone else []
        return cls(quote([*(["--local"] if local else []), *project]), quote(zone))

    def complete(self, text: str) -> str:
        """Return a text whose commands, typed as they stand, reach the same cloud."""
        words = " ".join(filter(None, (self.words, "" if "--zone" in text else self.zone)))
        return _COMMAND.sub(lambda _: f"tpukit {words} ", text) if words else text

    def view(self, view: View) -> View:
        warnings = tuple(self.complete(each) for each in view.warnings)
        return replace(view, hint=self.complete(view.hint), warnings=warnings)

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Complete what an error that leaves here says is to be typed."""
        try:
            yield
        except TpukitError as error:
            error.fix = self.complete(error.fix)
            error.exists = tuple(self.complete(each) for each in error.exists)
            raise
