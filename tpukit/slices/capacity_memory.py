"""What earlier requests for capacity came to, on this machine or on a colleague's.

A place is a zone, a type, a way to buy and an API. A place whose last attempt has given a slice is
asked early, and one that has just refused late. Everything works without the file.
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
from tpukit.errors import NameTaken, NoCapacity, QuotaExceeded, TpukitError
from tpukit.models import SliceRequest
from tpukit.paths import exclusively, private_directory, read_own, replace_file
from tpukit.slices.refusals import ELSEWHERE, outlook

#: Outcomes of attempts.
MADE, NO_CAPACITY, NO_QUOTA, REFUSED = "made", "no capacity", "no quota", "refused"
#: Seconds in which an outcome says something about the next attempt.
_GOOD_SECONDS, _BAD_SECONDS = 7 * 86400.0, 86400.0
#: The numbers of successes and of refusals to keep, and the bytes of a file with more.
_MOST, _LARGE = 1000, 1 << 19

Place = tuple[str, str, str, str]  #: a zone, an accelerator type, how it is bought, and an API


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

    @property
    def place(self) -> Place:
        return self.zone, self.type, self.bought, self.api


_FIELDS = {field.name: float if field.type == "float" else str for field in fields(Attempt)}


@dataclass(frozen=True)
class CapacityMemory:
    """The attempts in one project at one endpoint of the Cloud TPU API, oldest first."""

    directory: Path
    place: str  #: the endpoint and the project
    clock: Clock
    enabled: bool = True

    @property
    def path(self) -> Path:
        import hashlib

        digest = hashlib.sha256(self.place.encode()).hexdigest()
        return self.directory / f"{digest[:32]}.jsonl"

    def record(self, request: SliceRequest, error: TpukitError | None, waited: float) -> None:
        """Add an attempt, which has made a slice if there is no error.

        Errors that say nothing about the place, such as a rate limit, are left out.
        """
        if outcome := _outcome(error):
            now, waited = round(self.clock.time()), round(waited, 1)
            zone, type_, bought, api = place_of(request)
            self.add([Attempt(now, zone, type_, bought, api, outcome, waited)])

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Append attempts, each in a line; ignore errors, such as a full disk."""
        text = _text(attempts)
        if not self.enabled or not text:
            return
        with suppress(OSError, TpukitError):
            private_directory(self.directory)
            with exclusively(self.path.with_suffix(".lock")):
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
                with os.fdopen(os.open(self.path, flags, 0o600), "a", encoding="utf-8") as file:
                    file.write(text)
                if self.path.stat().st_size > _LARGE:
                    self._shorten()

    def attempts(self, accelerator_type: str = "") -> list[Attempt]:
        """Return the attempts, or those for one type."""
        known = [*parsed(self._documents())]
        return [one for one in known if accelerator_type in ("", one.type)]

    def best_first(self, requests: Sequence[SliceRequest]) -> list[SliceRequest]:
        """Return requests with the best places first, for each way to buy and type in their order.

        The last attempt in a place counts for a week if it gave a slice, and for a day if not.
        Places without quota come last.
        """
        now, ranks = self.clock.time(), dict[Place, int]()
        for one in sorted(self.attempts(), key=lambda one: one.time):
            good = one.outcome == MADE
            if abs(now - one.time) <= (_GOOD_SECONDS if good else _BAD_SECONDS):
                ranks[one.place] = -1 if good else 2 if one.outcome == NO_QUOTA else 1
        wishes = list(dict.fromkeys(place_of(request)[1:3] for request in requests))

        def key(request: SliceRequest) -> tuple[int, int]:
            place = place_of(request)
            return wishes.index(place[1:3]), ranks.get(place, 0)

        return sorted(requests, key=key)

    def _shorten(self) -> None:
        known = self.attempts()
        made = [one for one in known if one.outcome == MADE][-_MOST:]
        refused = [one for one in known if one.outcome != MADE][-_MOST:]
        replace_file(self.path, _text(sorted([*made, *refused], key=lambda one: one.time)))

    def _documents(self) -> Iterator[Any]:
        lines: list[str] = []
        with suppress(OSError, TpukitError):
            lines = read_own(self.path).splitlines()
        for line in lines:
            with suppress(ValueError, RecursionError):
                yield json.loads(line)


def place_of(request: SliceRequest) -> Place:
    """Return the place in which a request asks."""
    return request.zone, request.accelerator_type, request.provisioning, request.api


def _text(attempts: Iterable[Attempt]) -> str:
    return "".join(f"{json.dumps(asdict(one))}\n" for one in attempts)


def parsed(documents: Iterable[Any]) -> Iterator[Attempt]:
    """Yield the attempts in JSON values; leave out what is none."""
    for document in documents:
        with suppress(AttributeError, KeyError, TypeError, ValueError, OverflowError):
            values: dict[str, Any] = {name: kind(document[name]) for name, kind in _FIELDS.items()}
            attempt = Attempt(**values)
            if isfinite(attempt.time) and isfinite(attempt.waited):
                yield attempt


@dataclass(frozen=True)
class PlaceMemory:
    """The attempts in one place, in numbers; `last` is the last one."""

    attempts: int
    made: int
    last: Attempt


def by_place(attempts: Sequence[Attempt]) -> list[PlaceMemory]:
    """Return the places of attempts, the last success first, then the last refusal."""
    places: dict[Place, list[Attempt]] = {}
    for one in sorted(attempts, key=lambda one: one.time):
        places.setdefault(one.place, []).append(one)
    memories = [
        PlaceMemory(len(own), sum(one.outcome == MADE for one in own), own[-1])
        for own in places.values()
    ]
    return sorted(memories, key=lambda place: (place.last.outcome != MADE, -place.last.time))


def _outcome(error: TpukitError | None) -> str:
    """Return what an attempt says about its place, or "" for nothing."""
    if error is None:
        return MADE
    if isinstance(error, NoCapacity):
        return NO_CAPACITY
    if isinstance(error, QuotaExceeded) and error.retry != "same-zone":  # a rate limit
        return NO_QUOTA
    refused = outlook(error) == ELSEWHERE and not isinstance(error, NameTaken)
    return REFUSED if refused else ""
