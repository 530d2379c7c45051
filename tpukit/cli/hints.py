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

    @classmethod
    def of(cls, flags: Flags, environ: Mapping[str, str]) -> Hints:
        """Return the hints of a command line; what the environment says need not be repeated."""
        local = flags.local and not _points_at_the_emulator(environ)
        project = ["--project", flags.project] if flags.project else []
        return cls(quote([*(["--local"] if local else []), *project]))

    def complete(self, text: str) -> str:
        """Return a text whose commands, typed as they stand, reach the same cloud."""
        return _COMMAND.sub(lambda _: f"tpukit {self.words} ", text) if self.words else text

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


def _points_at_the_emulator(environ: Mapping[str, str]) -> bool:
    """Tell whether the environment alone leads to the emulator, as `emulator env` makes it."""
    if environ.get("TPUKIT_LOCAL", "") not in NO:
        return True
    return environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "").startswith("http://127.0.0.1:")
