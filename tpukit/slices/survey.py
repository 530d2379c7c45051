"""The dead and expired slices and queued resources of a project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tpukit.errors import NotFound, TpukitError
from tpukit.google.provider import SliceProvider
from tpukit.models import Documented, QueuedResource, QueuedResourceList, Slice
from tpukit.slices import lifetime
from tpukit.slices.find import look
from tpukit.slices.naming import MANAGED, OWNER, is_owner, lacks_group
from tpukit.slices.queued import slices_of

SLICE, QUEUED = "slice", "queued resource"
#: Seconds after which the template of a create without its group is left over.
ABANDONED_SECONDS = 3600.0
#: States of a slice or request that is already being ended.
_LEAVING = frozenset({"DELETING", "SUSPENDING"})


@dataclass(frozen=True)
class Leftover(Documented):
    """A dead or expired slice or queued resource; `spared` is the reason if it must stay."""

    _hidden = ("thing",)
    kind: str
    name: str
    zone: str
    state: str
    owner: str
    why: str
    spared: str
    created: str
    thing: Slice | QueuedResource = field(compare=False)

    @property
    def dead(self) -> bool:
        """Whether it is a lost slice or a dead request, not one whose time has passed."""
        return self.thing.lost if isinstance(self.thing, Slice) else self.thing.dead

    @property
    def label(self) -> str:
        """Its kind, name, zone, state and owner in words."""
        whose = f", of {self.owner}" if self.owner else ""
        return f"{self.kind} {self.name} ({self.zone}, {self.state}{whose})"


@dataclass(frozen=True)
class Survey:
    """The leftovers and slices in the zones that answered.

    `unreachable` are the zones that did not answer; `unseen` has the errors of failed lists.
    """

    due: tuple[Leftover, ...]
    spared: tuple[Leftover, ...]
    slices: tuple[Slice, ...]
    unreachable: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """True if every list is complete."""
        return not (self.unreachable or self.unseen)


def survey(
    provider: SliceProvider,
    owner: str,
    *,
    zone: str = "-",
    others: bool = False,
    foreign: bool = False,
) -> Survey:
    """Return the leftovers of `owner`, by the cloud's clock.

    `others` also makes things due that tpukit made for other owners, `foreign` those that tpukit
    did not make. A slice of a queued resource is deleted with it, and stays while other slices of
    it are in use. Raises `TpukitError` if the slices cannot be listed.
    """
    listed = provider.list(zone)
    unseen: tuple[str, ...] = ()
    try:
        queued = provider.list_queued(zone)
    except TpukitError as error:
        queued, unseen = QueuedResourceList(()), (error.summary(),)
    due: list[Leftover] = []
    spared: list[Leftover] = []
    for thing, why, busy in _leftovers(listed.slices, queued.requests, provider.now()):
        kind, whose = SLICE if isinstance(thing, Slice) else QUEUED, thing.labels.get(OWNER, "")
        stays = busy or _protection(thing.labels, owner, others, foreign)
        place = (thing.name, thing.zone, thing.state)
        left = Leftover(kind, *place, whose, why, stays, thing.created, thing)
        (spared if stays else due).append(left)
    silent = tuple(sorted({*listed.unreachable, *queued.unreachable}))
    return Survey(tuple(due), tuple(spared), listed.slices, silent, unseen)


def still_due(provider: SliceProvider, thing: Slice | QueuedResource) -> bool:
    """Return True if a thing is unchanged and still dead or expired.

    Since it was shown, somebody may have extended it, or made another one of its name.
    """
    try:
        if isinstance(thing, Slice):
            now = look(provider, thing)
            return now is not None and bool(_end_of_slice(now, provider.now()))
        request = provider.get_queued(thing.zone, thing.name)
        slices = [] if request.dead else slices_of(provider, request)
        end = _end_of_request(request, slices, provider.now())
        return request.created == thing.created and bool(end)
    except NotFound:
        return False


def _leftovers(
    slices: Sequence[Slice], requests: Sequence[QueuedResource], now: float
) -> Iterator[tuple[Slice | QueuedResource, str, str]]:
    """Yield each leftover with the reason, and with the reason why it stays, or ""."""
    by_place = {(request.zone, request.name): request for request in requests}
    own: Mapping[tuple[str, str], list[Slice]] = {place: [] for place in by_place}
    alone: list[Slice] = []
    for slice_ in slices:
        own.get((slice_.zone, slice_.queued_resource), alone).append(slice_)
    for place, request in by_place.items():
        if why := _end_of_request(request, own[place], now):
            yield request, why, ""
            continue
        for slice_ in own[place]:
            if why := _end_of_slice(slice_, now):
                busy = f"queued resource {request.name} is {request.state} and has other slices"
                yield slice_, why, busy if len(own[place]) > 1 else ""
    for slice_ in alone:
        if why := _end_of_slice(slice_, now):
            yield slice_, why, ""
        elif lacks_group(slice_) and slice_.workers and slice_.state not in _LEAVING:
            yield slice_, "its group is gone", "its machines may be in use, and bill until deleted"


def _end_of_slice(slice_: Slice, now: float) -> str:
    """Return why a slice is dead or expired, or ""."""
    if slice_.state in _LEAVING:
        return ""
    if slice_.lost:
        return f"it is {slice_.state}"
    made = lifetime.created_at(slice_)
    age = 0.0 if made is None else now - made
    if lacks_group(slice_) and not slice_.workers and age > ABANDONED_SECONDS:
        return f"nobody completed it for {lifetime.span(age)}"
    claim = lifetime.claim_end(slice_)
    unclaimed = claim is not None and claim <= now
    return _time_is_up(slice_.labels, now) or ("nobody claimed it in time" if unclaimed else "")


def _end_of_request(request: QueuedResource, slices: Sequence[Slice], now: float) -> str:
    """Return why a request is dead or expired, or "".

    If it has slices, their labels count, because the request's labels never change.
    """
    if request.state in _LEAVING:
        return ""
    if request.dead:
        return f"it is {request.state}" + (f": {request.error}" if request.error else "")
    if not slices:
        return _time_is_up(request.labels, now)
    ends = [_end_of_slice(slice_, now) for slice_ in slices]
    return f"of slice {slices[0].name}, {ends[0]}" if all(ends) else ""


def _time_is_up(labels: Mapping[str, str], now: float) -> str:
    end = lifetime.seconds_of(labels.get(lifetime.EXPIRES, ""))
    if end is None or end > now:
        return ""
    return f"it expired {lifetime.span(now - end)} ago"


def _protection(labels: Mapping[str, str], owner: str, others: bool, foreign: bool) -> str:
    """Return why we may not delete a thing with these labels, or ""."""
    if labels.get(MANAGED) != "1":
        return "" if foreign else "tpukit did not make it"
    if not is_owner(owner, labels) and not others:
        return f"it belongs to {labels.get(OWNER) or 'an unknown owner'}"
    return ""
