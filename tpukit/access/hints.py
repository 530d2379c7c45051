"""Recent addresses and host keys of a slice's workers, kept for ten minutes.

With a hint, a command on workers needs no API call. A worker must prove a host key of the hint, and
if that fails, the API is asked as if there were no hint.
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
from tpukit.slices.claim import in_use

#: Seconds for which a hint is used.
_SECONDS = 600.0
#: The fields of a slice that are needed to reach its workers.
_KEPT = (
    *("name", "project", "zone", "api", "id", "accelerator_type", "runtime_version", "state"),
    *("network", "network_project", "tags", "service_account", "external_addresses"),
)


@dataclass(frozen=True)
class Hint:
    """A recently read slice, and the published identities of its workers.

    `everywhere` is True if all zones were searched and it was the only slice of its name.
    """

    slice: Slice
    identities: Mapping[int, WorkerIdentity]
    everywhere: bool
    login: WorkerLogin | None = None  #: if OS Login is on

    @property
    def zone(self) -> str:
        """The zone to search for it again; empty for all zones."""
        return "" if self.everywhere else self.slice.zone


@dataclass(frozen=True)
class Hints:
    """The hints of this user on this machine, for one project of one API.

    An unreadable or unwritable file is ignored.
    """

    directory: Path
    place: str  #: API endpoint and project
    clock: Clock
    enabled: bool = True

    def recall(self, name: str, zone: str) -> Hint | None:
        """Return the hint for a slice in a zone ("" for all zones), or None."""
        if not self.enabled:
            return None
        try:
            document = recall_json(self._path(name))
            fresh = 0 <= self.clock.time() - document["written"] < _SECONDS
            hint = _hint(document, zone) if fresh and document["version"] == __version__ else None
        except (KeyError, TypeError, AttributeError):
            return None
        return hint if hint and hint.zone == zone else None

    def keep(self, hint: Hint) -> None:
        """Store a hint for the next command, unless that must read the slice to claim it."""
        if not self.enabled or in_use(hint.slice):
            return
        document = {
            "version": __version__,
            "written": self.clock.time(),
            "slice": {name: getattr(hint.slice, name) for name in _KEPT},
            "workers": [asdict(worker) for worker in hint.slice.workers],
            "identities": [asdict(identity) for identity in hint.identities.values()],
            "everywhere": hint.everywhere,
            "login": asdict(hint.login) if hint.login else None,
        }
        keep_json(self._path(hint.slice.name), document)

    def forget(self, name: str) -> None:
        """Remove the hint of a slice, because its workers may change."""
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        import hashlib

        digest = hashlib.sha256(
            f"{self.place}\n{name}".encode(errors="surrogateescape")
        ).hexdigest()
        return self.directory / f"{digest[:32]}.json"


def _hint(document: Mapping[str, Any], zone: str) -> Hint:
    known = [WorkerIdentity(**identity) for identity in document["identities"]]
    identities = {
        identity.index: replace(identity, host_keys=tuple(identity.host_keys)) for identity in known
    }
    workers = tuple(Worker(**worker) for worker in document["workers"])
    everywhere = bool(document["everywhere"]) and not zone
    slice_ = Slice(**document["slice"], workers=workers)
    login = WorkerLogin(**document["login"]) if document["login"] else None
    return Hint(replace(slice_, tags=tuple(slice_.tags)), identities, everywhere, login)
