"""The places of one search in Google's queues: requests that wait while it asks elsewhere.

The requests carry the search's name and `naming.SEARCH`, one in a zone, so the same command finds
them again. When the search has a slice, it deletes them, because their slices would bill.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tpukit.clock import Deadline, polls
from tpukit.errors import DeadlinePassed, Fix, NotFound, TpukitError
from tpukit.google.provider import SliceProvider
from tpukit.models import QueuedResource, Slice
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import OnState, passing
from tpukit.slices.naming import SEARCH, is_owner, is_unfinished
from tpukit.slices.queue_requests import WAITING
from tpukit.slices.queued import delete_queued, slices_of

#: The first and longest pause in seconds before asking again for the requests of all zones.
_PAUSE = (5.0, 30.0)
#: Seconds to delete a request; 12 minutes are on record.
_DELETE_SECONDS = 1800.0


@dataclass
class QueuePlaces:
    """The requests of a search by zone; None if a request may exist that nobody has seen.

    `zones` are those in whose queues the search asks. Without zones, nothing is read or deleted.
    """

    provider: SliceProvider
    name: str
    owner: str
    zones: frozenset[str]
    deadline: Deadline
    journal: Journal
    on_state: OnState
    apart: bool = False  #: True if requests in other zones are not of this search
    requests: dict[str, QueuedResource | None] = field(init=False)

    def __post_init__(self) -> None:
        self.requests = dict.fromkeys(self.zones)

    def find(self) -> None:
        """Find the requests of earlier searches; a silent zone may have one.

        Raises `DeadlinePassed` if the API does not answer.
        """
        if not self.zones:
            return
        for _ in polls(self.deadline, *_PAUSE):
            try:
                listed = self.provider.list_queued("-")
            except TpukitError as error:
                if not passing(error):
                    raise
                self.on_state(f"{error.what}; trying again")
                continue
            ours = {
                one.zone: one
                for one in listed.requests
                if self._is_ours(one) and (one.zone in self.zones or not self.apart)
            }
            self.requests = {**dict.fromkeys(self.zones.intersection(listed.unreachable)), **ours}
            return
        raise DeadlinePassed(f"cannot tell whether queued resource {self.name} exists")

    def asks(self, zone: str) -> None:
        """Note that the search is about to ask in the queue of a zone."""
        self.requests.setdefault(zone, None)

    def look(self, zone: str) -> None:
        """Read the request of a zone that has not given a slice; without an answer, it stays."""
        try:
            queued = self.provider.once().get_queued(zone, self.name)
        except NotFound:
            self.requests.pop(zone, None)
        except TpukitError as error:
            self.on_state(f"{zone}: {error.what}")
        else:
            self.requests[zone] = queued
            if not self._is_ours(queued):
                del self.requests[zone]

    def withdraw(self, made: Slice) -> None:
        """Delete the requests, and their slices, except the request that the slice `made` is from.

        Requests that no search made stay. If a zone is silent, `on_state` gets the command.

        Raises the errors of `delete_queued`; `complete` names the request.
        """
        for zone in [*self.requests]:
            if made.queued_resource == self.name and made.zone == zone:
                continue
            self.look(zone)
            if zone not in self.requests:
                continue
            queued = self.requests[zone]
            if queued is None:
                self.on_state(f"{self._line(zone)}: {self._delete_command(zone)}")
            elif self._is_used(queued):
                self._say_used(zone)
            elif SEARCH not in queued.labels:
                self.on_state(f"{zone}: queued resource {self.name} stays: no search made it")
            else:
                self._delete(queued, made)

    def complete(self, error: TpukitError) -> None:
        """Add to an error the requests that it leaves, each with the command that deletes it."""
        for zone in sorted(self.requests):
            named = f"queued resource {self.name} in {zone}"
            if any(line.startswith(named) for line in error.exists):
                continue
            line, delete = self._line(zone), self._delete_command(zone)
            if error.fix is None:
                error.fix = delete
            elif error.otherwise is None:
                error.otherwise = delete
            else:
                line += f": {delete}"
            error.exists += (line,)

    def _delete(self, queued: QueuedResource, made: Slice) -> None:
        place = f"{queued.zone}: queued resource {self.name}"
        self.on_state(f"{place}: deleting it, because another place had room")
        # A forced delete may take every slice of the request's names, and one may be `made`.
        elsewhere = (made.zone, made.api) != (queued.zone, "tpu")
        try:
            ended = delete_queued(
                self.provider,
                queued,
                force=elsewhere and not queued.dead,
                deadline=self.deadline.within(_DELETE_SECONDS),
                journal=self.journal,
                on_state=lambda state: self.on_state(f"{place}: {state}"),
                stays=self._has_used,
            )
        except TpukitError as error:
            error.exists, error.fix = (), None  # the slice comes first, then `complete`
            raise
        if not ended:
            self._say_used(queued.zone)
            return
        del self.requests[queued.zone]
        self.on_state(f"{place}: deleted")

    def _say_used(self, zone: str) -> None:
        self.on_state(f"{self._line(zone)}, unless you use them: {self._delete_command(zone)}")

    def _is_used(self, queued: QueuedResource) -> bool:
        """Return True if a request may have a slice that a search has ended with."""
        try:
            return self._has_used(queued)
        except TpukitError:
            return True

    def _has_used(self, queued: QueuedResource) -> bool:
        """Return True if a request has a slice that a search has ended with."""
        if queued.dead or queued.state in WAITING:
            return False
        return not all(map(is_unfinished, slices_of(self.provider.once(), queued)))

    def _is_ours(self, queued: QueuedResource) -> bool:
        return queued.name == self.name and is_owner(self.owner, queued.labels)

    def _line(self, zone: str) -> str:
        queued = self.requests[zone]
        if queued is None:
            return f"queued resource {self.name} may wait in {zone}; its slices would bill"
        costs = "it keeps its quota" if queued.dead else "its slices bill until they are deleted"
        return f"queued resource {self.name} in {zone}, {queued.state} when last seen; {costs}"

    def _delete_command(self, zone: str) -> Fix:
        return Fix.command("tpukit", "queue", "delete", self.name, "--zone", zone)
