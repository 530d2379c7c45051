"""Where a slice's workers answered lately: addresses and host keys, kept for minutes.

A hint decides nothing: what answers has to prove a host key of it, and at the first doubt the API
is asked as if there were none. With one, a command on workers needs no API.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tpukit import __version__
from tpukit.access.os_login import WorkerLogin
from tpukit.clock import Clock
from tpukit.models import Slice, Worker, WorkerIdentity
from tpukit.paths import keep_json, recall_json

#: Seconds for which a hint is used.
_SECONDS = 600.0
#: What of a slice leads to its workers; everything else is read anew where it is needed.
_KEPT = (
    *("name", "project", "zone", "id", "accelerator_type", "runtime_version", "state"),
    *("network", "network_project", "tags", "service_account", "external_addresses"),
)


@dataclass(frozen=True)
class Hint:
    """A slice as it was found lately, and the identities that its workers had published.

    `everywhere` tells that it was looked for in all zones, and was the only one of its name.
    """

    slice: Slice
    identities: Mapping[int, WorkerIdentity]
    everywhere: bool
    login: WorkerLogin | None = None  #: where OS Login says who we are

    @property
    def zone(self) -> str:
        """The zone to look for it in again; empty stands for all."""
        return "" if self.everywhere else self.slice.zone


@dataclass(frozen=True)
class Hints:
    """The hints of one account here, for one project of one API.

    A file that cannot be read or written is no hint, and never an error.
    """

    directory: Path
    place: str  #: API endpoint and project
    clock: Clock
    enabled: bool = True

    def recall(self, name: str, zone: str) -> Hint | None:
        """Return what is known of the slice of that name, in that zone unless it is empty."""
        if not self.enabled:
            return None
        try:
            found = recall_json(self._path(name))
            fresh = 0 <= self.clock.time() - found["written"] < _SECONDS
            hint = _hint(found, zone) if fresh and found["version"] == __version__ else None
        except (KeyError, TypeError, AttributeError):
            return None
        return hint if hint and hint.zone == zone else None

    def keep(self, hint: Hint) -> None:
        """Remember a slice for the next command."""
        if not self.enabled:
            return
        document = {
            "version": __version__,
            "written": self.clock.time(),
            "slice": {name: getattr(hint.slice, name) for name in _KEPT},
            "workers": [asdict(each) for each in hint.slice.workers],
            "identities": [asdict(each) for each in hint.identities.values()],
            "everywhere": hint.everywhere,
            "login": asdict(hint.login) if hint.login else None,
        }
        keep_json(self._path(hint.slice.name), document)

    def forget(self, name: str) -> None:
        """Forget a slice: what is done to it makes other workers of it, or none."""
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        import hashlib

        digest = hashlib.sha256(f"{self.place}\n{name}".encode()).hexdigest()
        return self.directory / f"{digest[:32]}.json"


def _hint(document: Mapping[str, Any], zone: str) -> Hint:
    known = [WorkerIdentity(**each) for each in document["identities"]]
    identities = {each.index: replace(each, host_keys=tuple(each.host_keys)) for each in known}
    workers = tuple(Worker(**each) for each in document["workers"])
    everywhere = bool(document["everywhere"]) and not zone
    found = Slice(**document["slice"], workers=workers)
    login = WorkerLogin(**document["login"]) if document["login"] else None
    return Hint(replace(found, tags=tuple(found.tags)), identities, everywhere, login)
