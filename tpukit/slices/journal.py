"""A local, append-only hint of what was asked for, written before each call that can bill.

The cloud is the truth and everything works with the journal deleted. It keeps in sight slices that
were made in another project, and data disks whose slices are gone.
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
    """What the file holds of one API: the projects of another are none of its own."""

    path: Path
    clock: Clock
    endpoint: str = ""
    enabled: bool = True

    def record(
        self, event: str, project: str, zone: str, name: str, disks: Iterable[DataDisk] = ()
    ) -> None:
        """Append one line and force it to the disk; a full disk never stops a command.

        The line end comes first, so that a line cut by a crash spoils no other.
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
        if sources := [each.source for each in disks]:
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
        """Return the other projects in which a slice was made here and never deleted from here."""
        open_slices: set[tuple[str, str, str]] = set()
        for event, place, _ in self._events():
            (open_slices.add if event == "create" else open_slices.discard)(place)
        return tuple(sorted({place[0] for place in open_slices} - {project}))

    def disks(self, project: str) -> Mapping[str, str]:
        """Return the data disks that slices of a project had, each with the last one's name."""
        found: dict[str, str] = {}
        for _, (place, _, name), sources in self._events():
            found.update(dict.fromkeys(sources if place == project else (), name))
        return found

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
                disks = [str(each) for each in entry.get("disks", ())]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # a line cut by a crash is no reason to refuse a command
            if endpoint == self.endpoint:
                yield event, (place[0], place[1], place[2]), disks
