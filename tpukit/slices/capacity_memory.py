"""What earlier requests for capacity came to, on this machine or on a colleague's.

A zone whose last attempt has given a slice is asked early, and one that has just refused late.
Everything works without the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from tpukit.clock import Clock
from tpukit.errors import NoCapacity, QuotaExceeded, TpukitError
from tpukit.models import SliceRequest
from tpukit.paths import private_directory, read_own, replace_file

#: Outcomes of attempts.
MADE, NO_CAPACITY, NO_QUOTA, REFUSED = "made", "no capacity", "no quota", "refused"
#: Seconds in which an outcome says something about the next attempt.
_GOOD_SECONDS, _BAD_SECONDS = 7 * 86400.0, 86400.0
#: The number of attempts to keep, and the bytes of a file with more.
_MOST, _LARGE = 2000, 1 << 20


@dataclass(frozen=True)
class Attempt:
    """One request for a slice in one place; `waited` are the seconds until its outcome."""

    time: float  #: seconds since the epoch
    zone: str
    type: str
    bought: str  #: how it was bought: on-demand, spot, …
    api: str
    outcome: str
    waited: float


_FIELDS = {field.name: float if field.type == "float" else str for field in fields(Attempt)}


@dataclass(frozen=True)
class CapacityMemory:
    """The attempts at one endpoint of the Cloud TPU API, oldest first."""

    path: Path
    clock: Clock
    endpoint: str
    enabled: bool = True

    def record(self, request: SliceRequest, error: TpukitError | None, waited: float) -> None:
        """Add an attempt, which has made a slice if there is no error."""
        attempt = Attempt(
            round(self.clock.time()),
            request.zone,
            request.accelerator_type,
            request.provisioning,
            request.api,
            _outcome(error),
            round(waited, 1),
        )
        self.add([attempt])

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Append attempts, each in a line; ignore errors, such as a full disk."""
        lines = [json.dumps({**asdict(one), "endpoint": self.endpoint}) for one in attempts]
        if not self.enabled or not lines:
            return
        with suppress(OSError, TpukitError):
            private_directory(self.path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            with os.fdopen(os.open(self.path, flags, 0o600), "a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
            if self.path.stat().st_size > _LARGE:
                kept = self._lines()[-_MOST:]
                replace_file(self.path, "".join(f"{line}\n" for line in kept))

    def attempts(self, accelerator_type: str = "") -> list[Attempt]:
        """Return the attempts, or those for one type."""
        known = [*parsed(self._documents())]
        return [one for one in known if accelerator_type in ("", one.type)]

    def promise(self, accelerator_type: str) -> dict[str, int]:
        """Return by zone -1 if its last attempt gave a slice in a week, 1 if it refused in a day.

        A zone that has no quota comes after all others, with 2.
        """
        now, ranks = self.clock.time(), dict[str, int]()
        for one in sorted(self.attempts(accelerator_type), key=lambda one: one.time):
            good = one.outcome == MADE
            if now - one.time <= (_GOOD_SECONDS if good else _BAD_SECONDS):
                ranks[one.zone] = -1 if good else 2 if one.outcome == NO_QUOTA else 1
        return ranks

    def _documents(self) -> Iterator[Any]:
        for line in self._lines():
            with suppress(ValueError, RecursionError):
                document = json.loads(line)
                if isinstance(document, dict) and document.get("endpoint") == self.endpoint:
                    yield document

    def _lines(self) -> list[str]:
        try:
            return read_own(self.path).splitlines()
        except (OSError, TpukitError):
            return []


def parsed(documents: Iterable[Any]) -> Iterator[Attempt]:
    """Yield the attempts in JSON values; leave out what is none."""
    for document in documents:
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            values: dict[str, Any] = {name: kind(document[name]) for name, kind in _FIELDS.items()}
            attempt = Attempt(**values)
            if isfinite(attempt.time):
                yield attempt


@dataclass(frozen=True)
class PlaceMemory:
    """The attempts in one place, in numbers; `last` is the last one."""

    attempts: int
    made: int
    last: Attempt


def by_place(attempts: Sequence[Attempt]) -> list[PlaceMemory]:
    """Return the places of attempts, the last success first, then the last refusal."""
    places: dict[tuple[str, ...], list[Attempt]] = {}
    for one in sorted(attempts, key=lambda one: one.time):
        places.setdefault((one.zone, one.type, one.bought, one.api), []).append(one)
    memories = [
        PlaceMemory(len(own), sum(one.outcome == MADE for one in own), own[-1])
        for own in places.values()
    ]
    return sorted(memories, key=lambda place: (place.last.outcome != MADE, -place.last.time))


def _outcome(error: TpukitError | None) -> str:
    if error is None:
        return MADE
    if isinstance(error, NoCapacity):
        return NO_CAPACITY
    return NO_QUOTA if isinstance(error, QuotaExceeded) else REFUSED
