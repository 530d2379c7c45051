"""A gang of slices: all of them, or none.

The slices of a gang carry the label `naming.GANG` until all are READY. Only slices with this label
are deleted, so a gang never loses slices that existed before. If a process dies, the label lets the
same command continue with its slices, and end in all or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeVar

from tpukit.access.cleanup import Cleanup, Deleted
from tpukit.access.ssh_rule import rule_name
from tpukit.clock import Deadline, polls
from tpukit.errors import Fix, NoCapacity, QuotaExceeded, TpukitError, interruption
from tpukit.models import Slice
from tpukit.slices.capacity import PAUSE, Search
from tpukit.slices.ensure import READ_BACK_SECONDS
from tpukit.slices.find import look
from tpukit.slices.last_seen import OnState, last_seen, passing
from tpukit.slices.naming import GANG, OWNER, is_owner
from tpukit.slices.refusals import LATER, outlook
from tpukit.slices.update import Edits, update
from tpukit.ssh.fan_out import fan_out, values

#: Seconds to delete the slices of an incomplete gang.
_DELETE_SECONDS = 1200.0
#: A slice in an explanation whose create was not confirmed.
_DOUBT = re.compile(r"slice \S+ in \S+(?= may still appear)")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Gang:
    """The searches for the slices of a gang, one for each name, and the deadline for a new round.

    A round asks every place once for each slice. Between two rounds the gang has no slices.
    """

    searches: Sequence[Search]
    asking: Deadline | None
    cleanup: Cleanup
    deadline: Callable[[float], Deadline]
    say: OnState

    @classmethod
    def of(
        cls,
        searches: Sequence[Search],
        cleanup: Cleanup,
        deadline: Callable[[float], Deadline],
        say: OnState,
    ) -> Gang:
        """Return the gang of these searches, with its label in their requests."""
        marked = [
            replace(
                search,
                asking=None,
                requests=[
                    replace(request, labels={**request.labels, GANG: "1"})
                    for request in search.requests
                ],
            )
            for search in searches
        ]
        return cls(marked, searches[0].asking, cleanup, deadline, say)

    @property
    def names(self) -> list[str]:
        return [search.requests[0].name for search in self.searches]

    def obtain(self, attempt: Callable[[], Made]) -> Made:
        """Return the result of `attempt`, which obtains a slice for each search.

        If it fails, delete the gang's slices. If a place may have capacity later, try again until
        the deadline, after a pause.

        Raises the error of the last attempt. It names the deleted slices, and the ones that exist.
        """
        while True:
            try:
                return attempt()
            except KeyboardInterrupt as signal:
                error, hopeful = interruption(signal), False
            except TpukitError as failure:
                error, hopeful = failure, _hopeful(failure)
            if not self._give_back(error) or not hopeful or self.asking is None:
                raise error from None
            if self.asking.passed():
                error.fix = Fix(note="the same command asks again, here or on another machine")
                raise error from None
            seconds = min(self.searches[0].jitter(*PAUSE), self.asking.remaining())
            self.say(f"{error.what}; asking for all {len(self.names)} again in {seconds:.0f} s")
            self.asking.clock.sleep(seconds)

    def complete(self, slices: Sequence[Slice], deadline: Deadline) -> list[Slice]:
        """Return the slices without the gang's label, which says that a gang is not complete."""
        edits = Edits(labels={GANG: None}, ours=True)
        provider = self.cleanup.provider
        try:
            done = fan_out(slices, lambda one: update(provider, one, edits, deadline=deadline))
            return [updated.slice for updated in values(done)]
        except KeyboardInterrupt as signal:
            error = interruption(signal)
            error.fix = Fix(note="the same command completes the gang")
            raise error from None

    def _give_back(self, error: TpukitError) -> bool:
        """Delete the gang's slices, and say so in the error; return True if none can be left."""
        deadline, doubtful = self.deadline(_DELETE_SECONDS), self._doubts(error)
        expected = doubtful | {f"slice {name} in {zone}" for zone, name in error.slices}
        try:
            ours = {_place(slice_): slice_ for slice_ in self._existing(deadline, expected)}
        except TpukitError as unknown:
            lines = [error.why, f"cannot tell which of its slices exist: {unknown.summary()}"]
            error.why = "\n".join(filter(None, lines))
            error.fix = Fix.command("tpukit", "list", note="the same command continues with them")
            return False
        mine = {place: slice_ for place, slice_ in ours.items() if GANG in slice_.labels}
        for place in mine:
            self.say(f"deleting {place}: the others cannot be had")
        done = self.cleanup.end_all(mine, deadline, self._is_unfinished)
        left = {ours[place].name for place in done.failed}
        rules = {rule_name(mine[place]) for place in done.names} - {*done.rules}
        rules |= {*self.cleanup.remove_left([name for name in self.names if name not in left])}
        over = {*done.names, *done.failed}
        others = [slice_ for place, slice_ in ours.items() if place not in over]
        self._tell(error, done, others, doubtful - ours.keys(), rules)
        return not (left or doubtful - ours.keys())

    def _doubts(self, error: TpukitError) -> set[str]:
        """Return the places, as `_place`, of slices whose creates were not confirmed."""
        refusals = error.details.get("refusals", ())
        apis = {place: one["api"] for one in refusals for place in _DOUBT.findall(one["why"])}
        requests = [request for search in self.searches for request in search.requests]
        for place in _DOUBT.findall(error.why):
            asked = {request.api for request in requests if request.zone == place.split()[-1]}
            apis.setdefault(place, "compute" if asked == {"compute"} else "tpu")
        return {_spelled(place, api) for place, api in apis.items()}

    def _existing(self, deadline: Deadline, expected: Set[str]) -> list[Slice]:
        """Return our slices with the gang's names.

        Wait for the expected ones, but not long. One whose create was not confirmed may never
        appear, and one that was there may be gone: a single list is no proof of that.
        """
        patience, provider = deadline.within(READ_BACK_SECONDS), self.cleanup.provider
        requests = [request for search in self.searches for request in search.requests]
        zones, owner = {request.zone for request in requests}, requests[0].labels[OWNER]
        silent, ours = zones, list[Slice]()
        for _ in polls(patience):
            try:
                listed = provider.within(patience).list("-")
            except TpukitError as error:
                if not passing(error):
                    raise
                continue
            silent = zones & {*listed.unreachable}
            named = [slice_ for slice_ in listed.slices if slice_.name in self.names]
            ours = [slice_ for slice_ in named if is_owner(owner, slice_.labels)]
            shown = {f"slice {slice_.name} in {slice_.zone}" for slice_ in ours}
            if not silent and expected <= shown | {*map(_place, ours)}:
                break
        if silent:
            raise TpukitError(f"no answer from {', '.join(sorted(silent))}")
        return ours

    def _is_unfinished(self, thing: object) -> bool:
        """Return False if a slice has lost the gang's label: another process completed the gang."""
        now = look(self.cleanup.provider, thing) if isinstance(thing, Slice) else None
        return now is None or GANG in now.labels

    def _tell(
        self,
        error: TpukitError,
        done: Deleted,
        others: Sequence[Slice],
        doubtful: Set[str],
        rules: Set[str],
    ) -> None:
        """Replace an error's lines about the gang's slices by the deleted and the existing ones.

        `rules` are the names of the rules that are gone.
        """
        deleted = [f"deleted: {', '.join(done.names)}"] if done.names else []
        failed = [f"{place} was not deleted: {why.summary()}" for place, why in done.failed.items()]
        told = error.why.splitlines() if doubtful else _without_doubt(error.why)
        error.why = "\n".join([*told, *deleted, *failed])
        known = [last_seen(self.cleanup.provider, slice_) for slice_ in others]
        over = (
            *(f"slice {name} in " for name in self.names),
            *(f"firewall rule {r}" for r in rules),
        )
        error.exists = (
            *(line for failure in done.failed.values() for line in failure.exists),
            *(line for seen in known for line in seen.exists()),
            *(line for line in error.exists if not line.startswith(over)),
        )
        there = {slice_.name for slice_ in others} | {place.split()[1] for place in doubtful}
        gone = {*self.names, *rules} - there
        fixes = [fix for fix in (error.fix, error.otherwise) if fix and not gone & {*fix.arguments}]
        if left := [place.split()[1] for place in done.failed]:
            fixes.insert(0, Fix.command("tpukit", "delete", *left))
        again = Fix(note="the same command tries again to get all of them")
        error.fix, error.otherwise, *_ = [*fixes, again, None] if fixes else [again, None]


def _hopeful(error: TpukitError) -> bool:
    """Return True if a place refused and may have capacity later."""
    full = isinstance(error, (NoCapacity, QuotaExceeded)) and error.retry != "never"
    refusals = error.details.get("refusals", ())
    return (full or outlook(error) == LATER) and any(one["again"] == LATER for one in refusals)


def _place(slice_: Slice) -> str:
    return _spelled(f"slice {slice_.name} in {slice_.zone}", slice_.api)


def _spelled(place: str, api: str) -> str:
    return f"{place} on Compute Engine" if api == "compute" else place


def _without_doubt(why: str) -> list[str]:
    """Return the lines of an explanation without those about slices that may still appear."""
    return [line for line in why.splitlines() if not _DOUBT.match(line) and line[:8] != "then it "]
