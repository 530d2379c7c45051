"""Get a slice where there is room: ask in one place after the other, until one has it.

A search takes up what is there, so that it goes on after Ctrl-C, a reboot, or on another machine:
labels tell what a search has made. Of several slices that two searches made at once, the oldest
that becomes READY stays, and the others are deleted: whoever looks comes to the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from random import uniform
from typing import TypeVar

from tpukit.clock import Deadline, polls
from tpukit.cloud.provider import SliceProvider
from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    Fix,
    Interrupted,
    NameTaken,
    SliceLost,
    Terminated,
    TpukitError,
    interruption,
)
from tpukit.models import Slice, SliceRequest, SliceTarget
from tpukit.slices import change
from tpukit.slices.ensure import Ensured
from tpukit.slices.find import look, loss
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import OnState, last_seen, passing
from tpukit.slices.naming import OWNER, SEARCH, is_owner
from tpukit.slices.refusals import LATER, NEVER, Refusal, documents, doubts, noted, nowhere

#: Seconds between two rounds, in which every place is asked once: from and to.
_PAUSE = (30.0, 120.0)
#: Seconds from one look at zones that do not answer to the next: at first, and at most.
_SILENT_PAUSE = (5.0, 30.0)
#: Seconds for which a search waits for a zone that does not answer, while others do.
_SILENT_SECONDS = 60.0

Place = tuple[str, str]  #: a zone and an accelerator type
Got = TypeVar("Got", bound=Ensured)


@dataclass(frozen=True)
class Search:
    """Requests of one name, the most wanted first, and until when a round follows a round.

    Without `asking` there is one round. `seconds` are for what comes after a place has room.
    `best_effort` capacity there is by the queue alone. If `apart`, slices of the name in zones that
    are not asked are other slices.
    """

    requests: Sequence[SliceRequest]
    asking: Deadline | None = None
    seconds: float = inf
    jitter: Callable[[float, float], float] = uniform
    best_effort: bool = False
    apart: bool = False

    @property
    def single(self) -> bool:
        """Whether there is one place, asked once, whatever other places may have."""
        return SEARCH not in self.requests[0].labels


def obtain(
    provider: SliceProvider,
    search: Search,
    attempt: Callable[[SliceRequest], Got],
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
) -> tuple[Got, Sequence[Refusal]]:
    """Make sure of one slice in one of the places; return what `attempt` made, and who refused.

    The requests carry `naming.SEARCH` and their owner. An attempt returns a slice that is READY, or
    raises as `ensure` does.

    Raises:
        NoCapacity, QuotaExceeded: refused everywhere; every place's words are in `why`.
        NameTaken: there is one of that name elsewhere, or with another spec.
        DeadlinePassed: one is not READY yet, or a zone did not say whether it has one.
        TpukitError: of the class of the first refusal, where none was for want of room.
    """
    rounds = _Rounds(provider.within(deadline), search, deadline, journal, on_state)
    try:
        return rounds.run(attempt), rounds.refusals
    except KeyboardInterrupt as signal:
        error = interruption(signal)
        if rounds.there:
            last_seen(provider, rounds.there).complete(error)
        elif not doubts(rounds.refusals):
            error.why = f"there is no slice {rounds.name} yet"
        rounds.complete(error)
        raise error from None
    except TpukitError as error:
        rounds.complete(error)
        raise


@dataclass
class _Rounds:
    """One search: `seen` are the zones that have said what they have, `left` those of a round.

    Nothing is asked for in a zone that has not. It is waited for until `patience`, then left out.
    """

    provider: SliceProvider
    search: Search
    deadline: Deadline
    journal: Journal
    on_state: OnState
    seen: set[str] = field(default_factory=set)
    said: dict[Place, Refusal] = field(default_factory=dict)
    left: list[SliceRequest] = field(default_factory=list)
    begun: bool = False
    there: Slice | None = None  #: what was there when it was looked last
    patience: Deadline | None = None

    @property
    def name(self) -> str:
        return self.search.requests[0].name

    @property
    def refusals(self) -> list[Refusal]:
        """What each place that refused has said last, in the order of the requests."""
        return [self.said[each] for each in map(_place, self.search.requests) if each in self.said]

    def run(self, attempt: Callable[[SliceRequest], Got]) -> Got:
        while True:
            self.there = next(iter(self._living()), None)
            request = self._request_of(self.there) if self.there else self._next()
            if request is None:
                continue
            made = self._made(attempt, request, standing=bool(self.there))
            if made and self._alone(made.slice):
                for line in doubts(self.refusals).values():
                    self.on_state(f"{line}; the same command deletes it then")
                return made

    def complete(self, error: TpukitError) -> None:
        """Give an error what the places have said so far."""
        if self.refusals and "refusals" not in error.details:
            error.why = "\n".join(filter(None, [error.why, *(each.line for each in self.refusals)]))
            error.details = {**error.details, **documents(self.refusals)}
        if isinstance(error, (Interrupted, Terminated)):
            again = Fix(note="the same command takes the search up again, on any machine")
            error.fix, error.otherwise = error.fix or again, again if error.fix else None

    # What is there

    def _living(self) -> list[Slice]:
        """Return the slices of our name that may become ours, oldest first; remove lost ones."""
        living = []
        for each in self._standing():
            if each.lost and SEARCH in each.labels:
                self._delete(each, f"{each.state}: it does not come back")
            elif each.lost:
                raise loss(each)
            else:
                living.append(each)
        if len(living) > 1 and not all(SEARCH in each.labels for each in living):
            zones = ", ".join(each.zone for each in living)
            raise BadInput(
                f"slice {self.name} exists in several zones: {zones}",
                fix=Fix(note="choose another name"),
            )
        return living

    def _standing(self) -> list[Slice]:
        zones = {each.zone for each in self.search.requests}
        unknown: list[str] = []
        for _ in polls(self.deadline, *_SILENT_PAUSE):
            try:
                listed = self.provider.list("-")
            except TpukitError as error:
                if not passing(error):
                    raise
                self.on_state(f"{error.what}; waiting on")
                continue
            silent = zones.intersection(listed.unreachable)
            self.seen |= zones - silent
            read = [one for zone in sorted(silent) for one in self._read(zone)]
            unknown = sorted(silent - self.seen)
            if not unknown or (self.seen and self._out_of_patience()):
                self._leave_out(unknown)
                mine = filter(self._is_ours, (*listed.slices, *read))
                return sorted(mine, key=lambda each: (not each.created, each.created, each.zone))
            self.on_state(f"no answer from {', '.join(unknown)}: whether it has one is not known")
        raise DeadlinePassed(
            f"cannot tell whether slice {self.name} exists",
            why=f"no answer from {', '.join(unknown) or 'the API'}",
            fix=Fix(note="the same command goes on; leave out of --zones what has none for sure"),
        )

    def _read(self, zone: str) -> list[Slice]:
        """Return what a zone that a list leaves out says by itself, if it says anything."""
        try:
            found = look(self.provider.once(), SliceTarget(zone, self.name))
        except TpukitError as error:
            if not passing(error):
                raise
            return []
        self.seen.add(zone)
        return [found] if found else []

    def _out_of_patience(self) -> bool:
        self.patience = self.patience or self.deadline.within(_SILENT_SECONDS)
        return self.patience.passed()

    def _leave_out(self, zones: Sequence[str]) -> None:
        for request in self.search.requests:
            if request.zone in zones:
                why = f"whether {request.zone} has a slice {self.name} is not known"
                error = TpukitError("it did not answer", reason="no answer", why=why)
                self.said.setdefault(_place(request), noted(None, request, error))

    def _is_ours(self, found: Slice) -> bool:
        named = found.name == self.name and found.state != "DELETING"
        asked = not self.search.apart or found.zone in {each.zone for each in self.search.requests}
        return named and asked and is_owner(self.search.requests[0].labels[OWNER], found.labels)

    def _request_of(self, found: Slice) -> SliceRequest:
        """Return the request that asks for a slice as it is there."""
        for each in self.search.requests:
            if _place(each) == (found.zone, found.accelerator_type):
                return each
        zones = list(dict.fromkeys(each.zone for each in self.search.requests))
        raise NameTaken(
            f"slice {self.name} exists already, as a {found.accelerator_type} in {found.zone}",
            why=f"that is not what was asked for in {', '.join(zones)}",
            fix=Fix(note="choose another name, or name its zone and type too"),
            otherwise=Fix.command("tpukit", "delete", found.name, "--zone", found.zone),
        )

    def _alone(self, mine: Slice) -> bool:
        """Delete what came up beside the oldest; return whether that is `mine`."""
        rivals = [each for each in self._living() if SEARCH in each.labels]
        if rivals and rivals[0].zone != mine.zone:
            self.on_state(f"another search has one in {rivals[0].zone}, which is older")
            return False
        for each in rivals[1:]:
            self._delete(each, f"the one in {mine.zone} is older")
        return True

    def _delete(self, found: Slice, why: str) -> None:
        self.on_state(f"{found.zone}: deleting slice {found.name}: {why}")
        change.delete(
            self.provider,
            found,
            deadline=self.deadline,
            journal=self.journal,
            on_state=lambda state: self.on_state(f"{found.zone}: {state}"),
        )
        self.on_state(f"{found.zone}: deleted")

    # Whom to ask

    def _made(
        self, attempt: Callable[[SliceRequest], Got], request: SliceRequest, *, standing: bool
    ) -> Got | None:
        """Ask in one place; None where it refused, or where what was there is not any more."""
        place = " ".join(_place(request))
        self.on_state(f"{place}: {'taking up what is there' if standing else 'asking'}")
        try:
            return attempt(request)
        except (DeadlinePassed, Interrupted, Terminated):
            raise
        except TpukitError as error:
            if isinstance(error, NameTaken) and error.retry != "other-zone":
                raise
            refusal = noted(self.said.get(_place(request)), request, error)
            if refusal.again == NEVER or (standing and refusal.again != LATER):
                raise
            self.said[_place(request)] = refusal
            self.on_state(f"{place}: no ({refusal.again}): {error.why or error.what}")
            if standing and not isinstance(error, SliceLost):
                self._pause()
            return None

    def _next(self) -> SliceRequest | None:
        """Return whom to ask now, None after a pause; raise if nobody is left or time is over."""
        if not self.left:
            hopeful = [each for each in self.search.requests if self._may_ask(each)]
            asking = self.search.asking
            silent = asking and any(each.zone not in self.seen for each in self.search.requests)
            over = self.begun and (asking is None or asking.passed())
            if over or not (hopeful or silent):
                raise nowhere(self.name, self.refusals, keeps_trying=asking is not None)
            if self.begun or not hopeful:
                self._pause()
            self.begun, self.left = True, hopeful
        return self.left.pop(0) if self.left else None

    def _may_ask(self, request: SliceRequest) -> bool:
        said = self.said.get(_place(request))
        return request.zone in self.seen and (said is None or said.again == LATER)

    def _pause(self) -> None:
        limit = self.search.asking or self.deadline
        seconds = min(self.search.jitter(*_PAUSE), limit.remaining())
        hopeful = sum(each.again == LATER for each in self.refusals)
        at = time.strftime("%H:%M:%S", time.gmtime(limit.clock.time() + seconds))
        self.on_state(f"asking {hopeful} places again at {at} UTC")
        limit.clock.sleep(seconds)


def _place(request: SliceRequest) -> Place:
    return request.zone, request.accelerator_type
