"""On which workers the last command failed: a hint in a file of ours, for `run --failed`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tpukit.errors import BadInput
from tpukit.paths import private_directory, replace_file
from tpukit.remote.connection.worker import RemoteWorker


class FailedWorkers:
    """The file, by the names of slices; everything works with it deleted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def remember(self, tried: Iterable[RemoteWorker], failed: Iterable[RemoteWorker]) -> None:
        """Note who failed; who was not tried keeps what is known of it."""
        known = self._read()
        for each in tried:
            known.setdefault(each.slice, set()).discard(each.index)
        for each in failed:
            known[each.slice].add(each.index)
        document = {name: sorted(indices) for name, indices in known.items() if indices}
        private_directory(self._path.parent)
        replace_file(self._path, json.dumps(document))

    def among(self, candidates: Sequence[RemoteWorker]) -> list[RemoteWorker]:
        """Return those on which the last command failed; raise `BadInput` where there are none."""
        known = self._read()
        found = [each for each in candidates if each.index in known.get(each.slice, ())]
        if not found:
            names = ", ".join(dict.fromkeys(each.slice for each in candidates))
            raise BadInput(f"the last command failed on no worker of slice {names}")
        return found

    def _read(self) -> dict[str, set[int]]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            return {name: set(indices) for name, indices in document.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
