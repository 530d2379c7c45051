"""On which workers the last command failed: a hint in a file of ours, for `run --failed`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tpukit.errors import BadInput, TpukitError
from tpukit.paths import exclusively, private_directory, recall_json, replace_file
from tpukit.remote.connection.worker import RemoteWorker


class FailedWorkers:
    """The file, by slice; everything works with it deleted, or where it cannot be written.

    `place` tells the slices of one API and project from those of another.
    """

    def __init__(self, path: Path, place: Sequence[str]) -> None:
        self._path = path
        self._place = place

    def remember(self, tried: Iterable[RemoteWorker], failed: Iterable[RemoteWorker]) -> None:
        """Note who failed; who was not tried keeps what is known of it.

        A disk that is full never costs anybody what a command has brought.
        """
        with suppress(OSError, TpukitError):
            private_directory(self._path.parent)
            with exclusively(self._path.with_suffix(".lock")):
                known = self._read()
                for each in tried:
                    known.setdefault(self._key(each), set()).discard(each.index)
                for each in failed:
                    known[self._key(each)].add(each.index)
                document = {key: sorted(indices) for key, indices in known.items() if indices}
                replace_file(self._path, json.dumps(document))

    def among(self, candidates: Sequence[RemoteWorker]) -> list[RemoteWorker]:
        """Return those on which the last command failed; raise `BadInput` where there are none."""
        known = self._read()
        found = [each for each in candidates if each.index in known.get(self._key(each), ())]
        if not found:
            names = ", ".join(dict.fromkeys(each.slice for each in candidates))
            raise BadInput(f"the last command failed on no worker of slice {names}")
        return found

    def _key(self, worker: RemoteWorker) -> str:
        zone = worker.target.zone if worker.target else ""
        return " ".join((*self._place, zone, worker.slice))

    def _read(self) -> dict[str, set[int]]:
        try:
            return {name: set(indices) for name, indices in recall_json(self._path).items()}
        except TypeError:
            return {}
