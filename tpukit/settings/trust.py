"""The project files that the user trusts to decide payment and access."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tpukit.paths import private_directory, recall_json, replace_file


class TrustedFiles:
    """Trusted files by path and content: a changed file is not trusted any more."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def holds(self, path: Path, text: str) -> bool:
        """Return True if a file is trusted with this text."""
        return recall_json(self._file).get(str(path)) == _digest(text)

    def add(self, path: Path, text: str) -> None:
        """Trust a file while it has this text."""
        self._write({**recall_json(self._file), str(path): _digest(text)})

    def remove(self, path: Path) -> bool:
        """Stop trusting a file; return True if it was trusted."""
        known = recall_json(self._file)
        removed = known.pop(str(path), None) is not None
        if removed:
            self._write(known)
        return removed

    def _write(self, known: Mapping[str, str]) -> None:
        private_directory(self._file.parent)
        replace_file(self._file, json.dumps(known, indent=1))


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()
