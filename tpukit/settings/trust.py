"""Which project files the user trusts to say who pays and who may come in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tpukit.paths import private_directory, replace_file


class TrustedFiles:
    """Files by their path and content: one that has changed since is to be trusted again."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def holds(self, path: Path, text: str) -> bool:
        """Return whether a file is trusted with this text."""
        return self._read().get(str(path)) == _digest(text)

    def add(self, path: Path, text: str) -> None:
        """Trust a file as long as it has this text."""
        self._write({**self._read(), str(path): _digest(text)})

    def remove(self, path: Path) -> bool:
        """Trust a file no longer; return whether it was."""
        known = dict(self._read())
        removed = known.pop(str(path), None) is not None
        if removed:
            self._write(known)
        return removed

    def _read(self) -> Mapping[str, str]:
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # what cannot be read trusts nobody
            return {}
        return known if isinstance(known, dict) else {}

    def _write(self, known: Mapping[str, str]) -> None:
        private_directory(self._file.parent)
        replace_file(self._file, json.dumps(known, indent=1))


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()
