"""Which address of this machine each rule admits because it was found out, not given: a hint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tpukit.paths import keep_json, recall_json


@dataclass(frozen=True)
class OwnAddresses:
    """A file with the range of each rule. With the file lost, a rule keeps an older address."""

    path: Path

    def of(self, rule: str) -> str:
        """Return the range that was found out last, "" where none is known."""
        return str(recall_json(self.path).get(rule, ""))

    def remember(self, rule: str, found: str) -> None:
        """Keep the range for the next time."""
        if self.of(rule) != found:
            keep_json(self.path, {**recall_json(self.path), rule: found})
