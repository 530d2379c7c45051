"""The names of slices that were seen a while ago: for shells that complete a word, no more."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpukit.clock import Clock
from tpukit.errors import TpukitError
from tpukit.paths import private_directory, replace_file

#: Seconds that a name counts.
LIFETIME = 1800.0


@dataclass(frozen=True)
class NameHints:
    """The file; everything works with it deleted, and a full disk ends no command."""

    path: Path
    clock: Clock

    def names(self) -> list[str]:
        """Return the names that were seen lately, in order."""
        return sorted(self._read())

    def saw(self, names: Iterable[str]) -> None:
        """Note names that exist."""
        self._write({**self._read(), **dict.fromkeys(names, self.clock.time())})

    def forget(self, names: Iterable[str]) -> None:
        """Leave out names whose slices are gone."""
        gone = set(names)
        self._write({name: at for name, at in self._read().items() if name not in gone})

    def _read(self) -> dict[str, float]:
        now = self.clock.time()
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            return {str(name): at for name, at in document.items() if now - at < LIFETIME}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write(self, names: dict[str, float]) -> None:
        with suppress(OSError, TpukitError):
            private_directory(self.path.parent)
            replace_file(self.path, json.dumps(names))
