"""Which project files the user trusts to say who pays and who may come in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tpukit.paths import private_directory, recall_json, replace_file


class TrustedFiles:
    """Files by their path and content: one that has changed since is to be trusted again."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def holds(self, path: Path, text: str) -> bool:
        """Return whether a file is trusted with this text."""
        return recall_json(self._file).get(str(path)) == _digest(text)

    def add(self, path: Path, text: str) -> None:
        """Trust a file as long as it has this text."""
        self._write({**recall_json(self._file), str(path): _digest(text)})

    def remove(self, path: Path) -> bool:
        """Trust a file no longer; return whether it was."""
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
