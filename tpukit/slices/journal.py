"""A local, append-only record of creates and deletes, written before each call that can bill.

The cloud is the truth, and everything works without the journal. It helps to find slices that were
made in another project, and data disks of deleted slices.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpukit.clock import Clock
from tpukit.errors import TpukitError
from tpukit.models import DataDisk
from tpukit.paths import private_directory


@dataclass(frozen=True)
class Journal:
    """The entries of one API endpoint in the journal's file."""

    path: Path
    clock: Clock
    endpoint: str = ""
    enabled: bool = True

    def record(
        self, event: str, project: str, zone: str, name: str, disks: Iterable[DataDisk] = ()
    ) -> None:
        """Append one line and flush it to the disk; ignore errors such as a full disk.

        The line break comes first, so that a line cut by a crash does not damage the next.
        """
        if not self.enabled:
            return
        line: dict[str, Any] = {
            "time": round(self.clock.time(), 3),
            "endpoint": self.endpoint,
            "event": event,
            "project": project,
            "zone": zone,
            "name": name,
        }
        if sources := [disk.source for disk in disks]:
            line["disks"] = sources
        try:
            private_directory(self.path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            with os.fdopen(os.open(self.path, flags, 0o600), "a", encoding="utf-8") as file:
                file.write("\n" + json.dumps(line))
                file.flush()
                os.fsync(file.fileno())
        except (OSError, TpukitError):
            return

    def other_projects(self, project: str) -> tuple[str, ...]:
        """Return the other projects with slices that this machine made and did not delete."""
        open_slices: set[tuple[str, str, str]] = set()
        for event, place, _ in self._events():
            (open_slices.add if event == "create" else open_slices.discard)(place)
        return tuple(sorted({place[0] for place in open_slices} - {project}))

    def disks(self, project: str) -> Mapping[str, str]:
        """Return the data disks of a project's slices, each with the name of its last slice."""
        names: dict[str, str] = {}
        for _, (place, _, name), sources in self._events():
            names.update(dict.fromkeys(sources if place == project else (), name))
        return names

    def _events(self) -> Iterator[tuple[str, tuple[str, str, str], list[str]]]:
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            try:
                entry = json.loads(line)
                keys = ("endpoint", "event", "project", "zone", "name")
                endpoint, event, *place = (str(entry[key]) for key in keys)
                disks = [str(disk) for disk in entry.get("disks", ())]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # skip a line cut by a crash
            if endpoint == self.endpoint:
                yield event, (place[0], place[1], place[2]), disks
