"""The names of recently seen slices, used only for completion in a shell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tpukit.clock import Clock
from tpukit.paths import keep_json, recall_json

#: Seconds for which a name is kept.
LIFETIME = 1800.0


@dataclass(frozen=True)
class NameHints:
    """The file with the names; everything works without it."""

    path: Path
    clock: Clock

    def names(self) -> list[str]:
        """Return the names that were recently seen, sorted."""
        return sorted(self._read())

    def saw(self, names: Iterable[str]) -> None:
        """Add names of existing slices."""
        keep_json(self.path, {**self._read(), **dict.fromkeys(names, self.clock.time())})

    def forget(self, names: Iterable[str]) -> None:
        """Remove names of deleted slices."""
        gone = set(names)
        left = {name: at for name, at in self._read().items() if name not in gone}
        keep_json(self.path, left)

    def _read(self) -> dict[str, float]:
        now = self.clock.time()
        try:
            return {name: at for name, at in recall_json(self.path).items() if now - at < LIFETIME}
        except TypeError:
            return {}
