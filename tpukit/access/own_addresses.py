"""Which address of this machine each rule admits because it was found out, not given: a hint."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from tpukit.errors import TpukitError
from tpukit.paths import private_directory, replace_file


@dataclass(frozen=True)
class OwnAddresses:
    """A file with the range of each rule. With the file lost, a rule keeps an older address."""

    path: Path

    def of(self, rule: str) -> str:
        """Return the range that was found out last, "" where none is known."""
        return self._read().get(rule, "")

    def remember(self, rule: str, found: str) -> None:
        """Keep the range for the next time; a full disk never stops a command."""
        if self.of(rule) == found:
            return
        with contextlib.suppress(OSError, TpukitError):
            private_directory(self.path.parent)
            replace_file(self.path, json.dumps({**self._read(), rule: found}))

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return (
            {str(key): str(value) for key, value in found.items()}
            if isinstance(found, dict)
            else {}
        )
