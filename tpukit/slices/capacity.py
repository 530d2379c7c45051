"""Search for capacity: try to create a slice in one place after another until one succeeds.

A search continues with an existing slice, so it survives Ctrl-C, a reboot, or a change of machine.
A label marks the slices of searches, and says `LOOKING` until the search has ended or somebody uses
the slice; a slice without that word is complete, and no search deletes it unless it is lost. If two
searches make slices of one name, in two zones or in two APIs, the complete one stays, or else the
oldest that becomes READY, and the others are deleted. Every search reaches the same decision. Two
complete slices end a search, and so does a slice in an API that the search does not ask.

A place that only a queue gives keeps its request there while the search asks elsewhere. The search
deletes the requests that still wait when it has a slice; an error names them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from random import uniform
from typing import TypeVar

from tpukit.clock import Deadline, polls
from tpukit.errors import (
    DeadlinePassed,
    Fix,
    Interrupted,
    NameTaken,
    NotAllowed,
    NotEnabled,
    NotFound,
    SliceLost,
    Terminated,
    TpukitError,
    interruption,
)
from tpukit.google.provider import SliceProvider
from tpukit.google.roads import delete_in, in_several_places
from tpukit.models import Slice, SliceRequest
from tpukit.slices import change
from tpukit.slices.capacity_memory import Place
from tpukit.slices.claim import found, unlabelled
from tpukit.slices.ensure import Ensured, check_owner
from tpukit.slices.find import look
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import LastSeen, OnState, last_seen, passing
from tpukit.slices.losses import gone, loss
from tpukit.slices.naming import OWNER, SEARCH, is_owner, is_unfinished
from tpukit.slices.queue_places import QueuePlaces
from tpukit.slices.refusals import LATER, NEVER, Refusal, documents, doubtful, noted, nowhere
from tpukit.slices.refusals import place as in_words
from tpukit.text import counted

#: Seconds for which a search, also of a watch, asks again by default.
ASKING_SECONDS = 6 * 3600.0
#: The shortest and longest pause in seconds between two rounds; a round asks every place once.
PAUSE = (30.0, 120.0)
#: The first and longest pause in seconds before asking again for zones that do not answer.
_SILENT_PAUSE = (5.0, 30.0)
#: Seconds to wait for a zone that does not answer while others do.
_SILENT_SECONDS = 60.0
#: Seconds to note in the label of a slice that its search has ended.
_LABEL_SECONDS = 300.0

Got = TypeVar("Got", bound=Ensured)


@dataclass(frozen=True)
class Search:
    """Requests for one name, in order of preference, and the deadline for asking again.

    Without `asking` there is one round. `seconds` limit the work after a place has given capacity.
    If `apart`, the search ignores what has that name in other zones. It does not ask the places
    that `refused` names, but continues with a slice there.
    """

    requests: Sequence[SliceRequest]
    asking: Deadline | None = None
    seconds: float = inf
    jitter: Callable[[float, float], float] = uniform
    apart: bool = False
    refused: Sequence[Refusal] = ()

    @property
    def single(self) -> bool:
        """True for a plain create in one place, which ignores slices in other zones."""
        return SEARCH not in self.requests[0].labels

    @property
    def asks_beside(self) -> bool:
        """True if the search asks other places while a request waits in a queue."""
        return self.asking is not None and len(self.requests) > 1


def obtain(
    provider: SliceProvider,
    search: Search,
    attempt: Callable[[SliceRequest], Got],
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
) -> tuple[Got, Sequence[Refusal]]:
    """Obtain one slice in one of the places; return the result of `attempt`, and the refusals.

    The requests carry `naming.SEARCH` and their owner. An attempt sees only the API of its request;
    it returns a READY slice, or raises the errors of `ensure`.

    Raises:
        NoCapacity, QuotaExceeded: every place refused; `why` has the reason of each.
        NameTaken: a slice of that name exists elsewhere or with another spec.
        BadInput: two complete slices of that name exist.
        DeadlinePassed: the slice is not READY yet, or a zone did not answer.
        TpukitError: every place refused for other reasons; the class is the first refusal's.
    """
    rounds = _Rounds(provider.within(deadline), search, deadline, journal, on_state)
    rounds.said.update({_place(refusal.request): refusal for refusal in search.refused})
    with rounds.completing_errors():
        rounds.queues.find()
        while True:
            request = rounds.choose()
            if request is None:
                continue
            try:
                made = attempt(request)
            except (DeadlinePassed, Interrupted, Terminated):
                raise
            except TpukitError as error:
                rounds.note_refusal(request, error)
                continue
            if mine := rounds.settled(request, made.slice):
                return replace(made, slice=mine), rounds.refusals


@dataclass
class _Rounds:
    """One search: `seen` are the zones that have listed their slices, `left` a round's requests.

    The search creates nothing in a zone that has not answered. It waits for the zone until
    `patience`, then leaves it out.
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
    there: Slice | None = None  #: the slice in the last listing, or of the last attempt
    patience: Deadline | None = None
    queues: QueuePlaces = field(init=False)

    def __post_init__(self) -> None:
        requests = self.search.requests
        self.queues = QueuePlaces(
            self.provider,
            self.name,
            requests[0].labels[OWNER],
            frozenset(request.zone for request in requests if request.queue_only),
            deadline=self.deadline,
            journal=self.journal,
            on_state=self.on_state,
            apart=self.search.apart,
        )

    @property
    def name(self) -> str:
        return self.search.requests[0].name

    @property
    def sight(self) -> LastSeen:
        """The last known state of our slice; without a listing, it was not looked up."""
        if self.there:
            return last_seen(self.provider, self.there)
        zones = {request.zone for request in self.search.requests}
        zone = next(iter(zones)) if len(zones) == 1 else ""
        return LastSeen(self.name, zone, bills=self.provider.bills)

    @property
    def refusals(self) -> list[Refusal]:
        """The last refusal of each place, in the order of the requests."""
        return [
            self.said[place] for place in map(_place, self.search.requests) if place in self.said
        ]

    def choose(self) -> SliceRequest | None:
        """Return the request to try, which may have a slice already; None after a pause."""
        # A slice in an API that nobody asked comes first: it ends the search.
        self.there = min(self._living(), key=self._is_asked, default=None)
        request = self._request_of(self.there) if self.there else self._next()
        if request:
            how = "using the existing slice" if self.there else "asking"
            self.on_state(f"{in_words(request)}: {how}")
            if request.queue_only:
                self.queues.asks(request.zone)
        return request

    def settled(self, request: SliceRequest, slice_: Slice) -> Slice | None:
        """Return the slice that an attempt made, as the only one; None if another one stays."""
        self.there = slice_
        mine = self._found(request, slice_) if self._alone(slice_) else None
        if mine:
            self.there = mine
            self.queues.withdraw(mine)
            self._tell_doubts(mine)
        return mine

    def _tell_doubts(self, mine: Slice) -> None:
        for refusal in doubtful(self.refusals, mine):
            self.on_state(f"{refusal.doubt}; the same command deletes it then")
        for zone in self._silent():
            self.on_state(
                f"no answer from {zone}: if it has a slice {self.name}, that bills too; "
                "when it answers, the same command deletes that slice or names both"
            )

    @contextmanager
    def completing_errors(self) -> Iterator[None]:
        """Add to every error and signal in the block the slice that exists and the refusals."""
        try:
            yield
        except KeyboardInterrupt as signal:
            error = interruption(signal)
            if self.there or not self.seen:
                self.sight.complete(error)
            elif not doubtful(self.refusals):
                error.why = f"there is no slice {self.name} yet"
            self._complete(error)
            raise error from None
        except TpukitError as error:
            if self.there:
                self.sight.complete(error)
            self._complete(error)
            raise

    def _complete(self, error: TpukitError) -> None:
        """Add to an error the refusals so far, and the requests that wait in queues."""
        if self.refusals and "refusals" not in error.details:
            error.why = "\n".join(
                filter(None, [error.why, *(refusal.line for refusal in self.refusals)])
            )
            error.details = {**error.details, **documents(self.refusals, self.there)}
        if isinstance(error, (Interrupted, Terminated)):
            again = Fix(note="the same command continues the search, on any machine")
            known = error.otherwise or error.fix  # the command that deletes, if there is one
            error.fix, error.otherwise = known or again, again if known else None
        self.queues.complete(error)

    # Existing slices

    def _living(self) -> list[Slice]:
        """Return the usable slices of our name, the first to keep; delete lost ones.

        Raises `SliceLost` for another lost slice, and `BadInput` if several are complete.
        """
        living = []
        for slice_ in self._standing():
            if slice_.lost and SEARCH in slice_.labels:
                if not self._delete(slice_, f"it is {slice_.state}"):
                    return self._living()  # it lives again
            elif slice_.lost:
                raise loss(slice_)
            else:
                living.append(slice_)
        complete = [slice_ for slice_ in living if not is_unfinished(slice_)]
        if len(complete) > 1:
            error = in_several_places(complete)
            seen = (last_seen(self.provider, slice_) for slice_ in complete)
            error.exists = tuple(line for one in seen for line in one.exists())
            raise error
        return living

    def _standing(self) -> list[Slice]:
        zones = {request.zone for request in self.search.requests}
        unknown: list[str] = []
        for _ in polls(self.deadline, *_SILENT_PAUSE):
            try:
                listed = self.provider.list("-")
            except TpukitError as error:
                if not passing(error):
                    raise
                self.on_state(f"{error.what}; trying again")
                continue
            silent = zones.intersection(listed.unreachable)
            self.seen |= zones - silent
            read = [one for zone in sorted(silent) for one in self._read(zone)]
            unknown = sorted(silent - self.seen)
            if not unknown or (self.seen and self._out_of_patience()):
                self._leave_out(unknown)
                named = [
                    slice_
                    for slice_ in (*listed.slices, *read)
                    if slice_.name == self.name and slice_.state != "DELETING"
                ]
                self._avoid(named)
                return sorted(filter(self._is_ours, named), key=_precedence)
            self.on_state(f"no answer from {', '.join(unknown)}; asking again")
        raise DeadlinePassed(
            f"cannot tell whether slice {self.name} exists",
            why=f"no answer from {', '.join(unknown) or 'the API'}",
            fix=Fix(note="run the same command again, or leave these zones out of --zones"),
        )

    def _read(self, zone: str) -> list[Slice]:
        """Ask a zone that a listing left out for our slices; mark it as seen if it answers."""
        slices = []
        try:
            for api in self.provider.apis:
                with suppress(NotFound, NotAllowed, NotEnabled):
                    slices.append(self.provider.once().only(api).get(zone, self.name))
        except TpukitError as error:
            if not passing(error):
                raise
            return []
        self.seen.add(zone)
        return slices

    def _out_of_patience(self) -> bool:
        self.patience = self.patience or self.deadline.within(_SILENT_SECONDS)
        return self.patience.passed()

    def _leave_out(self, zones: Sequence[str]) -> None:
        for request in self.search.requests:
            if request.zone in zones:
                why = f"slice {self.name} may exist in {request.zone}"
                error = TpukitError("it did not answer", reason="no answer", why=why)
                self.said.setdefault(_place(request), noted(None, request, error))

    def _silent(self) -> list[str]:
        """Return the zones that have never answered."""
        zones = dict.fromkeys(request.zone for request in self.search.requests)
        return [zone for zone in zones if zone not in self.seen]

    def _avoid(self, named: Sequence[Slice]) -> None:
        """Refuse the places in which another owner's slice has our name, in whichever API."""
        for slice_ in named:
            try:
                check_owner(slice_, self.search.requests[0].labels[OWNER])
            except NameTaken as taken:
                for request in self.search.requests:
                    if request.zone == slice_.zone:
                        self.said.setdefault(_place(request), noted(None, request, taken))

    def _is_ours(self, slice_: Slice) -> bool:
        asked = not self.search.apart or slice_.zone in {
            request.zone for request in self.search.requests
        }
        return asked and is_owner(self.search.requests[0].labels[OWNER], slice_.labels)

    def _is_asked(self, slice_: Slice) -> bool:
        """Return True if a request names the slice's API."""
        return slice_.api in {request.api for request in self.search.requests}

    def _request_of(self, slice_: Slice) -> SliceRequest:
        """Return the request that matches an existing slice; raise `NameTaken` if none does."""
        exact_first = sorted(self.search.requests, key=lambda one: _place(one) != _place(slice_))
        for request in exact_first:
            if _kind(request) == _kind(slice_):
                return request
        zones = list(dict.fromkeys(request.zone for request in self.search.requests))
        where = slice_.zone + (" on Compute Engine" if slice_.api == "compute" else "")
        delete = Fix.command("tpukit", "delete", slice_.name, "--zone", slice_.zone)
        if not self._is_asked(slice_):
            delete = delete_in(slice_.api, slice_.name, slice_.zone)
        raise NameTaken(
            f"slice {self.name} exists already, as a {slice_.accelerator_type} in {where}",
            why=f"you asked for another type, zone or API: {', '.join(zones)}",
            fix=Fix(note="choose another name, or name its zone, type and API too"),
            otherwise=delete,
        )

    def _alone(self, mine: Slice) -> bool:
        """Return True and delete the rivals if `mine` is the slice to keep, else return False."""
        rivals = self._living()
        if rivals and _spot(rivals[0]) != _spot(mine):
            older = "an older slice" if is_unfinished(rivals[0]) else "a complete slice"
            self.on_state(f"another search has {older}: {in_words(rivals[0])}")
            if not any(_kind(request) == _kind(rivals[0]) for request in self.search.requests):
                self._delete(mine, "the other slice stays, and is not one that you asked for")
            return False
        for rival in rivals[1:]:
            if not self._is_asked(rival):
                self.on_state(f"{in_words(rival)}: another slice of that name stays")
            elif not self._delete(rival, f"the slice in {in_words(mine)} stays"):
                return False
        return True

    def _found(self, request: SliceRequest, slice_: Slice) -> Slice | None:
        """Note in its label that our slice is found; return None if it has vanished meanwhile."""
        try:
            return found(self.provider, slice_, deadline=self.deadline.within(_LABEL_SECONDS))
        except (Interrupted, Terminated):
            raise
        except TpukitError as error:
            now = look(self.provider, slice_)
            if now is None or now.lost or now.state == "DELETING":
                before = self.said.get(_place(request))
                self.said[_place(request)] = noted(before, request, gone(slice_))
                return None
            self.on_state(unlabelled(error))
            return now

    def _delete(self, slice_: Slice, why: str) -> bool:
        """Delete a lost or unfinished slice; return False if somebody has got it meanwhile."""
        place = in_words(slice_)
        self.on_state(f"{place}: deleting slice {slice_.name}: {why}")
        if slice_.queued_resource == self.name:
            self.queues.asks(slice_.zone)  # its request stays, and keeps its quota
        ended = change.delete(
            self.provider,
            slice_,
            deadline=self.deadline,
            journal=self.journal,
            on_state=lambda state: self.on_state(f"{place}: {state}"),
            stays=_is_got,
        )
        self.on_state(f"{place}: {'deleted' if ended else 'it stays, because somebody has got it'}")
        return ended

    # Rounds

    def note_refusal(self, request: SliceRequest, error: TpukitError) -> None:
        """Note why a place refused, or why its slice has vanished; raise an error that is final."""
        standing = bool(self.there)
        if request.queue_only:
            self.queues.look(request.zone)
        # Google may keep the name for our request that waits in the queue of that zone.
        held = not request.queue_only and request.zone in self.queues.requests
        if isinstance(error, NameTaken) and error.retry != "other-zone" and not held:
            raise error
        refusal = noted(self.said.get(_place(request)), request, error)
        if refusal.again == NEVER or (standing and refusal.again != LATER):
            raise error
        self.said[_place(request)] = refusal
        self.on_state(f"{in_words(request)}: no ({refusal.again}): {error.why or error.what}")
        if standing and not isinstance(error, SliceLost):
            self._after_standing(request)
        self.there = None

    def _after_standing(self, request: SliceRequest) -> None:
        """Go on with the other places of the first round; later, wait for the next round."""
        if self.begun:
            self._pause()
            return
        others = [other for other in self.search.requests if _place(other) != _place(request)]
        self.begun, self.left = True, list(filter(self._may_ask, others))

    def _next(self) -> SliceRequest | None:
        """Return the next request, or None after a pause.

        Raises the error of `nowhere` if no place is worth asking, or if the time is over.
        """
        if not self.left:
            hopeful = [request for request in self.search.requests if self._may_ask(request)]
            asking = self.search.asking
            silent = asking and any(
                request.zone not in self.seen for request in self.search.requests
            )
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
        seconds = min(self.search.jitter(*PAUSE), limit.remaining())
        hopeful = sum(refusal.again == LATER for refusal in self.refusals)
        at = time.strftime("%H:%M:%S", time.gmtime(limit.clock.time() + seconds))
        self.on_state(f"asking {counted(hopeful, 'place')} again at {at} UTC")
        limit.clock.sleep(seconds)


def _is_got(slice_: Slice) -> bool:
    """Return True for a slice that somebody has got: no search deletes it."""
    return not (slice_.lost or is_unfinished(slice_))


def _place(one: SliceRequest | Slice) -> Place:
    return one.zone, one.accelerator_type, one.provisioning, one.api


def _kind(one: SliceRequest | Slice) -> tuple[str, str, str]:
    """Return the fields that a slice shares with its request."""
    return one.zone, one.accelerator_type, one.api


def _spot(one: Slice) -> tuple[str, str]:
    """Return where only one slice can have a name."""
    return one.zone, one.api


def _precedence(slice_: Slice) -> tuple[bool, bool, str, str, str]:
    """Return a sort key, the one to keep first: complete ones, then the oldest.

    It is the same for every search.
    """
    age = (not slice_.created, slice_.created)
    return is_unfinished(slice_), *age, slice_.zone, slice_.api
