"""The emulator's records, in memory and in one SQLite database."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tpukit.emulator.core.api_errors import Json
from tpukit.errors import BadInput, Fix

#: The version of the database and its records. Increase it with every change that an older emulator
#: would misread or lose.
VERSION = 1
_NEW = f"""
BEGIN;
CREATE TABLE record (kind TEXT, name TEXT, document TEXT, UNIQUE (kind, name));
PRAGMA user_version = {VERSION};
COMMIT;
"""
#: A record keeps its row, and so its place in the order, when a save replaces it.
_PUT = """
INSERT INTO record VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET document = excluded.document
"""
_DAMAGED = "it is cut off or damaged, and no part of it is used"
_OTHER_VERSION = "the version of tpukit that wrote it can read it; this one would lose a part of it"


class _OtherVersionError(ValueError):
    """The state was written by an emulator of another version."""


class Records(dict[str, Json]):
    """Documents by their full names, and the names that have changed since the last save.

    Use only `[…] =`, `del`, `pop`, `setdefault`, `change` and `clear` to change it: other methods
    of `dict` do not record the changed name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changed: dict[str, None] = {}  #: in the order of the changes

    def __setitem__(self, name: str, record: Json) -> None:
        super().__setitem__(name, record)
        self.changed[name] = None

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.changed[name] = None

    def pop(self, name: str, *default: Any) -> Any:
        self.changed[name] = None
        return super().pop(name, *default)

    def setdefault(self, name: str, record: Json) -> Json:
        if name not in self:
            self[name] = record
        return self[name]

    def change(self, name: str, **fields: object) -> None:
        """Replace fields of a record."""
        self[name] = {**self[name], **fields}

    def clear(self) -> None:
        self.changed.update(dict.fromkeys(self))
        super().clear()


@dataclass
class EmulatorState:
    """Every resource by its full name.

    Replace documents, never change them in place: the workers' SSH servers read them from another
    thread without the server's lock.
    """

    #: One record: the seconds by which the clock is ahead of this machine's, and its last time.
    clock: Records = field(default_factory=Records)
    nodes: Records = field(default_factory=Records)
    operations: Records = field(default_factory=Records)
    firewalls: Records = field(default_factory=Records)
    compute_operations: Records = field(default_factory=Records)
    projects: Records = field(default_factory=Records)
    queued_resources: Records = field(default_factory=Records)
    reservations: Records = field(default_factory=Records)
    logins: Records = field(default_factory=Records)
    offers: Records = field(default_factory=Records)
    quotas: Records = field(default_factory=Records)
    disks: Records = field(default_factory=Records)
    instances: Records = field(default_factory=Records)
    policies: Records = field(default_factory=Records)
    templates: Records = field(default_factory=Records)
    groups: Records = field(default_factory=Records)

    def collections(self) -> Iterator[tuple[str, Records]]:
        """Yield every kind of resource with its records."""
        return ((kind.name, getattr(self, kind.name)) for kind in fields(self))

    def has_changed(self) -> bool:
        """Return True if a record has changed since `settle`."""
        return any(records.changed for _, records in self.collections())

    def settle(self) -> None:
        """Mark all records as saved."""
        for _, records in self.collections():
            records.changed.clear()

    def clear(self) -> None:
        """Remove all records."""
        for _, records in self.collections():
            records.clear()


class StateFile:
    """A SQLite database; mode 0600 because it holds the workers' host keys.

    The cost of a save depends on the number of changes, not of records. Every save survives a crash
    of the emulator; a power cut may lose the last ones.
    Source: sqlite.org/pragma.html#pragma_synchronous, NORMAL in WAL mode.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database: sqlite3.Connection | None = None

    def load(self) -> EmulatorState:
        """Open the database and return the saved state, which is empty if there is no file yet.

        Raises `BadInput` and changes nothing if the file is damaged or has another version.
        """
        try:
            if not self.path.exists():
                _create(self.path)
            os.close(os.open(self.path, os.O_RDWR | os.O_NOFOLLOW))
            if not self.path.stat().st_size:  # SQLite would take it for a new database
                raise ValueError("it is empty")
            # SQLite gives its other files the mode of this one.
            self.path.chmod(0o600)
            self._database = sqlite3.connect(self.path, check_same_thread=False)
            state = _read(self._database)
        except _OtherVersionError as error:
            self.close()
            raise _refusal(self.path, str(error), _OTHER_VERSION) from error
        except (OSError, sqlite3.Error, ValueError, TypeError, KeyError) as error:
            self.close()
            raise _refusal(self.path, str(error), _DAMAGED) from error
        state.settle()
        return state

    def save(self, state: EmulatorState) -> None:
        """Write all changes in one transaction; raise `OSError` if that fails."""
        if self._database is None:
            raise OSError(f"{self.path} is not open")
        kept, gone = [], []
        for kind, records in state.collections():
            for name in records.changed:
                if name in records:
                    kept.append((kind, name, json.dumps(records[name])))
                else:
                    gone.append((kind, name))
        try:
            with self._database:
                self._database.executemany("DELETE FROM record WHERE (kind, name) = (?, ?)", gone)
                self._database.executemany(_PUT, kept)
        except sqlite3.Error as error:
            raise OSError(f"{self.path} cannot be written: {error}") from error
        state.settle()

    def close(self) -> None:
        """Close the database; SQLite then removes its files beside it."""
        if self._database is not None:
            self._database.close()
            self._database = None


def _create(path: Path) -> None:
    """Create an empty database under its name in one step, so that a crash leaves no half of it."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(new)) as database:
        database.executescript(_NEW)
    for left in ("-wal", "-shm"):  # SQLite would read an earlier database's leftovers
        path.with_name(path.name + left).unlink(missing_ok=True)
    new.replace(path)


def _read(database: sqlite3.Connection) -> EmulatorState:
    # No other process opens it, so SQLite needs no memory shared between processes.
    database.execute("PRAGMA locking_mode=EXCLUSIVE")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise _OtherVersionError(f"version {version}, and this emulator reads version {VERSION}")
    database.execute("PRAGMA journal_mode=WAL")
    # In pages of 4 KiB: SQLite's default of 1,000 would take 4 MB beside the records.
    database.execute("PRAGMA wal_autocheckpoint=100")
    database.execute("PRAGMA synchronous=NORMAL")
    (damage,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if damage != "ok":
        raise ValueError(damage)
    state = EmulatorState()
    collections = dict(state.collections())
    for kind, name, document in database.execute("SELECT * FROM record ORDER BY rowid"):
        if kind not in collections:
            raise _OtherVersionError(f"{kind}: a newer version of tpukit wrote it")
        collections[kind][name] = record = json.loads(document)
        if not isinstance(record, dict):
            raise ValueError(f"{kind}: {name} is no object")
    return state


def _refusal(path: Path, reason: str, why: str) -> BadInput:
    return BadInput(
        f"the emulator's state file {path} cannot be used",
        reason=reason,
        why=why,
        fix=Fix.command(
            *("mv", str(path), f"{path}.old"),
            note="it then starts without slices, and removes the files of their workers",
        ),
    )
