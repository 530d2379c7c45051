"""What the emulator knows, in memory and in one file that a crash cannot half-write."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from tpukit.emulator.core.api_errors import Json, is_number
from tpukit.emulator.workers.worker_host import WorkerRecord
from tpukit.errors import BadInput, Fix

VERSION = 1


@dataclass
class EmulatorState:
    """Every resource by its full name.

    The documents are replaced, never changed in place: the workers' SSH servers read them from
    another thread without the server's lock.
    """

    clock_offset: float = 0.0
    clock_time: float = 0.0  #: what the clock showed when this was saved
    nodes: dict[str, Json] = field(default_factory=dict)
    operations: dict[str, Json] = field(default_factory=dict)
    firewalls: dict[str, Json] = field(default_factory=dict)
    compute_operations: dict[str, Json] = field(default_factory=dict)
    projects: dict[str, Json] = field(default_factory=dict)
    queued_resources: dict[str, Json] = field(default_factory=dict)
    reservations: dict[str, Json] = field(default_factory=dict)
    logins: dict[str, Json] = field(default_factory=dict)
    offers: dict[str, Json] = field(default_factory=dict)
    quotas: dict[str, Json] = field(default_factory=dict)
    disks: dict[str, Json] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget every resource."""
        self.clock_offset = self.clock_time = 0.0
        for name in _COLLECTIONS:
            getattr(self, name).clear()


#: Collections that came later than files of this version: where there are none, they are empty.
_LATER = ("queued_resources", "reservations", "logins", "offers", "quotas", "disks")
_COLLECTIONS = ("nodes", "operations", "firewalls", "compute_operations", "projects", *_LATER)
#: What each record must hold for the emulator to go on with it.
_REQUIRED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "nodes": {"node": dict, "workers": list},
    "operations": {"verb": str, "target": str, "due": (int, float), "done": bool},
    "firewalls": {"name": str, "network": str},
    "compute_operations": {"due": (int, float), "operationType": str},
    "projects": {"items": list},
    "queued_resources": {"request": dict, "state": str, "since": (int, float), "version": str},
    "reservations": {"name": str},
    "logins": {"keys": dict},
    "offers": {"offered": bool},
    "quotas": {"name": str, "zone": str, "limit": int},
    "disks": {"name": str, "id": str},
}
_CLOCK = ("clock_offset", "clock_time")
_NO_DELAY = {"delay": 0.0, "not_before": 0.0}


class _OtherVersionError(ValueError):
    """A state of an emulator that knows something else."""


class StateFile:
    """One JSON file, replaced as a whole; mode 0600 because it holds the workers' host keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Each record with its JSON as last written: a record that is the same object is unchanged.
        self._written: dict[str, dict[str, tuple[Json, str]]] = {}

    def load(self) -> EmulatorState:
        """Return the saved state, or an empty one where there is no file.

        Raises `BadInput` for a file that is cut, damaged or of another version.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return EmulatorState()
        except (OSError, UnicodeDecodeError) as error:
            raise self._refusal(str(error)) from error
        try:
            return _parse(json.loads(text))
        except _OtherVersionError as error:
            why = (
                "the version of tpukit that wrote it can read it; this one would lose a part of it"
            )
            raise self._refusal(str(error), why) from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._refusal(str(error)) from error

    def save(self, state: EmulatorState) -> None:
        """Write the state so that a crash leaves the old file or the new one."""
        head = [f'"version":{VERSION}']
        head += [f'"{name}":{json.dumps(getattr(state, name))}' for name in _CLOCK]
        rest = [f'"{name}":{self._encoded(name, getattr(state, name))}' for name in _COLLECTIONS]
        replace_file(self.path, f"{{{','.join([*head, *rest])}}}\n".encode("ascii"))

    def _encoded(self, name: str, records: dict[str, Json]) -> str:
        """Return a collection as JSON; only what is new is encoded: 1,000 nodes are megabytes."""
        before, after = self._written.get(name, {}), {}
        for key, record in records.items():
            old = before.get(key)
            after[key] = old if old and old[0] is record else (record, json.dumps(record))
        self._written[name] = after
        return "{" + ",".join(f"{json.dumps(key)}:{text}" for key, (_, text) in after.items()) + "}"

    def _refusal(
        self, reason: str, why: str = "it was cut or damaged; it is never read in part"
    ) -> BadInput:
        return BadInput(
            f"the emulator's state file {self.path} cannot be used",
            reason=reason,
            why=why,
            fix=Fix.command(
                *("mv", str(self.path), f"{self.path}.damaged"),
                note="it then starts without slices, and removes the files of their workers",
            ),
        )


def replace_file(path: Path, data: bytes, sync: Callable[[int], None] = os.fsync) -> None:
    """Put `data` at `path` atomically and durably, readable by its owner alone."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            sync(stream.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent, sync)


def _sync_directory(directory: Path, sync: Callable[[int], None]) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _parse(document: Any) -> EmulatorState:
    if not isinstance(document, dict):
        raise ValueError("the top level is not an object")
    version = document.get("version")
    if not is_number(version):
        raise ValueError("it has no version")
    if version != VERSION:
        raise _OtherVersionError(
            f"version {version!r}, where this emulator reads version {VERSION}"
        )
    clock = [document["clock_offset"], document.get("clock_time", 0.0)]
    if not all(is_number(each, -inf) for each in clock):
        raise ValueError(f"{' or '.join(_CLOCK)} is not a number")
    unknown = document.keys() - {"version", *_CLOCK, *_COLLECTIONS}
    if unknown:  # a newer emulator's: the next save would lose it
        raise _OtherVersionError(
            f"{', '.join(sorted(unknown))}: a newer version of tpukit wrote it"
        )
    given = {**{name: {} for name in _LATER}, **document}
    queued = given["queued_resources"]
    if isinstance(queued, dict):  # records of versions that knew no delay
        given["queued_resources"] = {key: {**_NO_DELAY, **each} for key, each in queued.items()}
    return EmulatorState(*clock, *(_collection(name, given[name]) for name in _COLLECTIONS))


def _collection(name: str, records: Any) -> dict[str, Json]:
    if not isinstance(records, dict):
        raise ValueError(f"{name} is not an object")
    for key, record in records.items():
        for entry, kind in _REQUIRED[name].items():
            if not isinstance(record, dict) or not isinstance(record.get(entry), kind):
                raise ValueError(f"{name}: {key} has no usable {entry!r}")
        for worker in record.get("workers", ()):
            WorkerRecord(**worker)
    return records
