"""Questions to the user, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpukit.cli.global_flags import GlobalFlags
from tpukit.errors import BadInput, Fix
from tpukit.text import sanitize, shown_path


@dataclass(frozen=True)
class Questions:
    """Asks, unless the flags or the environment answer or forbid every question."""

    flags: GlobalFlags
    environ: Mapping[str, str]

    @property
    def possible(self) -> bool:
        """True on a terminal, unless every question is answered or forbidden."""
        return not (self._answered or self.flags.no_input) and _on_a_terminal()

    def confirm(self, question: str, details: Sequence[str] = ()) -> None:
        """Ask on a terminal; raise `BadInput` if nobody can answer, or if the answer is no.

        `details` are the lines above the question.
        """
        if self._answered:
            return
        if not self.possible:
            why = "\n".join(details)
            what = f'"{question}" needs an answer'
            raise BadInput(what, why=why, fix=Fix(note="add --yes"))
        sys.stderr.writelines(f"{sanitize(line)}\n" for line in details)
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise BadInput("nothing was done")

    def ask(self, question: str) -> str:
        """Return the answer to a question; raise `BadInput` if nobody can answer, or on ""."""
        if not self.possible:
            raise BadInput(f'"{question}" needs an answer')
        sys.stderr.write(f"{question}: ")
        sys.stderr.flush()
        answer = sys.stdin.readline().strip()
        if not answer:
            raise BadInput("nothing was done")
        return answer

    def passphrase(self, key: Path) -> str:
        """Return the passphrase of an SSH key; raise `BadInput` if nobody can be asked."""
        from getpass import getpass

        if self.flags.no_input or not _on_a_terminal():
            what = f"the SSH key {shown_path(key)} needs its passphrase"
            raise BadInput(what, fix=Fix.command("ssh-add", str(key), note="asks for it once"))
        return getpass(f"passphrase of {shown_path(key)}: ", sys.stderr)

    @property
    def _answered(self) -> bool:
        disabled = self.environ.get("CLOUDSDK_CORE_DISABLE_PROMPTS", "").lower()
        return self.flags.yes or disabled in ("1", "true", "yes", "on")


def _on_a_terminal() -> bool:
    return all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr))
