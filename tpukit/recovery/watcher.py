"""The loop of a watch: looks at the slice, makes it again and begins the command on it again.

Each step is noted in the watch's file before it is taken, and begins with a look: after a kill at
any moment the same loop finds out from the cloud and the workers what is there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf

from tpukit.access import ssh_rule
from tpukit.access.cleanup import Cleanup
from tpukit.clock import Clock, Deadline
from tpukit.cloud.provider import SliceProvider
from tpukit.errors import (
    DeadlinePassed,
    Fix,
    Interrupted,
    NameTaken,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    SliceLost,
    Terminated,
    TpukitError,
    TransportFailed,
    VerificationFailed,
    interruption,
)
from tpukit.models import Slice, SliceRequest
from tpukit.recovery.watch_file import (
    ENDED,
    RECOVERING,
    WATCHING,
    NotWritten,
    Record,
    Watch,
    WatchSpec,
    refreshed,
)
from tpukit.recovery.workload import Ended, Workload
from tpukit.slices import lifetime, naming
from tpukit.slices.capacity import Search
from tpukit.slices.ensure import check_owner
from tpukit.slices.last_seen import LastSeen, passing

#: Seconds between two looks at a slice at rest, at most.
LOOK_SECONDS = 15.0
#: Seconds for which a slice is looked at after its command has failed: what is taken away ends its
#: programs before the API says so.
SETTLE_SECONDS = 30.0
#: Seconds that the end of a slice may take until it is verified.
END_SECONDS = 1200.0
#: Seconds for which an API that has accepted us may refuse us: a login is renewed, a role set anew.
REFUSED_SECONDS = 600.0
#: Failures in a row to begin the command on a slice that is there.
_TRIES = 3

#: From which a slice does not come back. A slice of a queued resource is suspended where that is.
LOST = frozenset({"preempted", "terminated", "vanished", "suspended"})
#: What somebody has asked for, or a moment that passes by itself.
MAINTENANCE, READY, COMING = "maintenance", "ready", "coming"
STOPPED, DELETING = "stopped", "being deleted"

_WORDS = {
    "PREEMPTED": "preempted",
    "TERMINATED": "terminated",
    "SUSPENDED": "suspended",
    "STOPPED": STOPPED,
    "STOPPING": STOPPED,
    "DELETING": DELETING,
}
#: The states of a queued resource that has lost its slices, or is losing them: Cloud TPU API
#: reference, `QueuedResourceState`.
_SUSPENDED = ("SUSPENDED", "SUSPENDING")


class _Again(Exception):
    """A step cannot be taken now, for a cause that passes by itself; nothing depends on it."""


@dataclass
class Watcher:
    """One watch, from where its file says that it is."""

    cleanup: Cleanup
    record: Record
    work: Workload
    clock: Clock
    owner: str
    say: Callable[[str], None]
    began: bool = field(default=False, init=False)
    failures: int = field(default=0, init=False)
    created: str = field(default="", init=False)  #: of the slice that was seen last
    settling: Deadline | None = field(default=None, init=False)
    maintenance: bool = field(default=False, init=False)
    trouble: str = field(default="", init=False)  #: that was told last, and may pass
    refused: Deadline | None = field(default=None, init=False)  #: until when refusals may pass

    def watch(self) -> int:
        """Return the exit status of the command once it has ended.

        Raises:
            SliceLost: it was lost too often, or its lifetime is over.
            TpukitError: somebody stops or deletes the slice; it cannot be made again; the command
                cannot be begun.
            Interrupted, Terminated: the slice and the command go on; each says how to take it up.
        """
        watch = self._watch
        state = "unknown" if watch.state == WATCHING else ""
        self.seen = LastSeen(watch.name, watch.zone, state, self.provider.bills, id=watch.id)
        try:
            return self._loop()
        except KeyboardInterrupt as signal:
            raise self._left(interruption(signal)) from None
        except TpukitError as error:
            raise self._left(error) from None

    @property
    def _watch(self) -> Watch:
        return self.record.watch

    @property
    def _spec(self) -> WatchSpec:
        return self.record.watch.spec

    @property
    def provider(self) -> SliceProvider:
        return self.cleanup.provider

    def _loop(self) -> int:
        while True:
            try:
                status = self._until_recovered()
                if status is not None:
                    self._finish(status)
                    return status
                self.refused = None
            except _Again as again:
                self._wait_on(*again.args)
            except (NotAllowed, NotAuthenticated) as refusal:
                self._wait_out(refusal)

    def _finish(self, status: int) -> None:
        """Note how the command ended, and end the slice if that was asked for."""
        ends = self._spec.delete_when_done and status == 0
        if self._watch.status is None:
            state = WATCHING if ends else ENDED
            try:
                self.record.note(ENDED, f"status {status}", state=state, status=status)
            except NotWritten as error:
                self.say(error.summary())
        if ends:
            self._end_slice(None, for_good=True, state=ENDED)

    def _wait_out(self, refusal: TpukitError) -> None:
        """Wait after a refusal; raise it if it lasts, or if the API has never accepted us."""
        if not (self.seen.looked and self._watch.id):
            raise refusal
        self.refused = self.refused or Deadline.after(self.clock, REFUSED_SECONDS)
        if self.refused.passed():
            raise refusal
        self._wait_on(refusal)

    def _wait_on(self, cause: TpukitError) -> None:
        """Say once what stands in the way, and wait: neither an outage nor a full disk ends it."""
        if cause.summary() != self.trouble:
            self.trouble = cause.summary()
            self.say(f"{self.trouble}; trying again")
        self.clock.sleep(LOOK_SECONDS)

    def _until_recovered(self) -> int | None:
        """Look until the command has ended, and return its status; None after a step to recover."""
        if self._watch.status is not None:
            return self._watch.status
        for found in self._looks():
            if found and not self.seen.id:
                self._take(found)
            if found and self._watch.state == WATCHING:
                self._refresh(found)
            now = condition(found, self._queued_state(found))
            self.created = found.created if found else self.created
            if now == "vanished" and self._was_deleted():
                now, self.seen.state = DELETING, ""
            if now in LOST and self._watch.state == WATCHING:
                self._lose(now, found)
            if self._watch.state == RECOVERING:
                self._recover(now, found)
                return None
            if now in (STOPPED, DELETING):
                raise self._ended_by_others(now)
            self._tell_maintenance(now, found)
            if found is None or now == COMING:
                continue
            if not self.began:
                self._begin(found)
            self.refused = None if self.began else self.refused
            ended = self.work.ended() if self.began else None
            if ended is None:
                self.settling = None
            elif ended.status == 0:
                return 0
            elif self._settled(ended):
                if ended.status is not None:
                    return ended.status
                self._count(f"run {self._spec.run_id} was lost", ended.why)
                self.began = False
        raise AssertionError("a watch has no deadline")

    def _looks(self) -> Iterator[Slice | None]:
        never = Deadline.never(self.clock)
        looks = self.seen.looks(self.provider, never, self.say, most=LOOK_SECONDS)
        while True:
            with _outlasted():
                found = next(looks)
            yield found

    def _refresh(self, found: Slice) -> None:
        """Ask for the next slice as this one is now: its end may have been put off."""
        request = refreshed(self._spec.request, found)
        if request != self._spec.request:
            with _outlasted(NotWritten):
                self.record.change(spec=replace(self._spec, request=request))

    def _take(self, found: Slice) -> None:
        """Watch this slice from now on, and no other of its name; raise `NameTaken` for others'."""
        try:
            check_owner(found, self.owner)
        except NameTaken:
            self.seen.state = ""
            raise
        self.seen.id = found.id
        self.record.watch = replace(self._watch, id=found.id)

    def _queued_state(self, found: Slice | None) -> str:
        """Return the state of the queued resource where that may say why the slice is gone."""
        queued = self._spec.queued_resource
        if not queued or condition(found) not in (*LOST, DELETING):
            return ""
        with _outlasted(), suppress(NotFound):
            return self.provider.get_queued(self._watch.zone, queued).state
        return ""

    def _was_deleted(self) -> bool:
        """Tell whether somebody has deleted the slice that is gone: an operation of it is left."""
        if not self.created or self._watch.state == RECOVERING:
            return False
        zone, name = self._watch.zone, self._watch.name
        with suppress(TpukitError), _outlasted():
            return bool(self.provider.operations(zone, name, "delete", self.created))
        return False

    def _begin(self, found: Slice) -> None:
        """Begin the command. What may pass is tried again."""
        try:
            with _outlasted():
                request = replace(self._request(found.zone), provisioning=found.provisioning)
                how = self.work.begin(found, request)
        except SliceLost as lost:
            self.say(lost.summary())  # the next look tells what has become of it
            return
        except (TransportFailed, DeadlinePassed, VerificationFailed) as error:
            self.failures += 1
            if self.failures == _TRIES:
                raise
            self.say(f"{error.summary()}; trying again")
            return
        self.began, self.failures, self.settling = True, 0, None
        self._note(how, found.zone)

    def _settled(self, ended: Ended) -> bool:
        """Tell whether a command that failed was given the time in which its loss would show."""
        if self.settling is None:
            how = ended.why or f"the command ended with status {ended.status}"
            self.say(f"{how}; looking whether the slice is lost")
            self.settling = Deadline.after(self.clock, SETTLE_SECONDS)
        return self.settling.passed()

    def _tell_maintenance(self, now: str, found: Slice | None) -> None:
        under = now == MAINTENANCE
        if found and under != self.maintenance:
            self.maintenance = under
            word = "UNHEALTHY_MAINTENANCE: it may restart or be lost" if under else "healthy again"
            self._note(word, found.health_description)

    def _lose(self, what: str, found: Slice | None) -> None:
        """Note a loss, before anything is done about it."""
        self.work.leave()
        self.began, self.maintenance, self.settling = False, False, None
        detail = found.state if found else "the API answers that there is no such slice"
        self.seen.state = found.state if found else ""
        self._count(what, f"{detail} in {self._watch.zone}", state=RECOVERING)

    def _count(self, what: str, detail: str, **changes: object) -> None:
        """Note what another attempt is needed for; raise `SliceLost` where it is one too many."""
        watch = self._watch
        if watch.recoveries >= watch.spec.recoveries:
            self._note(f"{what}, and given up", detail, state=ENDED)
            raise SliceLost(
                f"slice {watch.name} is given up: {what}",
                reason=detail,
                why=f"it was recovered {watch.recoveries} times, as often as it might be",
            )
        self._note(what, detail, recoveries=watch.recoveries + 1, **changes)

    def _recover(self, now: str, found: Slice | None) -> None:
        """Take the next step to a slice that is there again."""
        if now == STOPPED:
            raise self._ended_by_others(now)
        if now in LOST or now == DELETING:
            over = self._seconds_left() <= 0
            self._end_slice(found, for_good=over)
            if over:
                raise self._expired()
        self._make()

    def _seconds_left(self) -> float:
        """Return the seconds until the slice's end, by the API's clock.

        Its time begins when it is made: until then its request has the moment that it was made at.
        """
        labels = self._spec.request.labels
        end = lifetime.seconds_of(labels.get(lifetime.EXPIRES, ""))
        return inf if end is None or lifetime.CREATED in labels else end - self.provider.now()

    def _expired(self) -> SliceLost:
        self._note("its lifetime is over", state=ENDED)
        return SliceLost(f"slice {self._watch.name} is not made again: its lifetime is over")

    def _end_slice(self, found: Slice | None, *, for_good: bool, **changes: object) -> None:
        """Return once the slice and its queued resource are gone, and `for_good` its rules too."""
        watch, spec = self._watch, self._spec
        if not (found or watch.id):
            return  # a slice of that name is not known to be ours
        expected = spec.request.expected
        last = found or replace(expected, zone=watch.zone, id=watch.id, created=self.created)
        tags = (ssh_rule.rule_name(last),) if for_good else ()
        last = replace(last, queued_resource=spec.queued_resource, tags=tags)
        with _outlasted(DeadlinePassed):
            self.cleanup.end(last, Deadline.after(self.clock, END_SECONDS))
        self.seen.state = ""
        if found or spec.queued_resource or changes:
            self._note("deleted", watch.zone, spec=replace(spec, queued_resource=""), **changes)

    def _make(self) -> None:
        """Make the slice where it was, then elsewhere, until there is room or its time is over."""
        places = dict.fromkeys([self._watch.zone, *self._spec.places])
        self._note("making it again", ", ".join(places))
        asking = Deadline.after(self.clock, min(self._spec.max_wait, self._seconds_left()))
        requests = [self._request(zone, **{naming.SEARCH: "1"}) for zone in places]
        try:
            found = self.work.make(Search(requests, asking, apart=True))
        except SliceLost as lost:
            raise _Again(lost) from lost  # the next look tells; the making goes on from there
        except TpukitError as error:
            if self._seconds_left() > 0:
                raise
            raise self._expired() from error
        self.seen.zone, self.seen.state, self.seen.id = found.zone, found.state, found.id
        self._note("made again", found.zone, state=WATCHING, zone=found.zone, id=found.id)

    def _request(self, zone: str, **labels: str) -> SliceRequest:
        request = self._spec.request
        request = replace(request, zone=zone, labels={**request.labels, **labels})
        return naming.labelled(request, self.owner, secrets.token_hex(6))

    def _note(self, event: str, detail: str = "", **changes: object) -> None:
        last = self._watch.history[-1:]
        if last and (last[0].event, last[0].detail) == (event, detail) and not changes:
            return
        with _outlasted(NotWritten):
            self.record.note(event, detail, **changes)
        self.trouble = ""
        self.say(f"{event} ({detail})" if detail else event)

    def _ended_by_others(self, now: str) -> TpukitError:
        """Return the error for an end that the slice's guard or somebody wanted: it is left so."""
        self.began = False
        idle = self._spec.request.labels.get(lifetime.IDLE, "") if now == DELETING else ""
        if now == DELETING and self._seconds_left() <= 0:
            return self._expired()
        self._note(
            f"{now}, by {'its guard or ' if idle else ''}somebody", self.seen.zone, state=ENDED
        )
        if idle:
            guard = f"its guard ends it if no device is in use for {idle} s"
            return SliceLost(f"slice {self._watch.name} is {now}", why=guard)
        start = Fix.command("tpukit", "start", self._watch.name, "--zone", self._watch.zone)
        return TpukitError(
            f"slice {self._watch.name} is {now}, and not by this watch",
            why="somebody, or a watch on another machine, has asked for that: this watch is over",
            fix=start if now == STOPPED else None,
        )

    def _left(self, error: TpukitError) -> TpukitError:
        """Say in what ends the watch early what exists, and how it is taken up."""
        watch, spec = self._watch, self._spec
        interrupted = isinstance(error, (Interrupted, Terminated))
        unseen = interrupted and not self.seen.state and not self.seen.looked
        if self.seen.state and not error.exists:
            error.exists = tuple(self.seen.exists())
        elif unseen:
            self.seen.complete(error)
        if self.began and spec.command and not self.settling:
            error.exists += (f"run {spec.run_id} of slice {watch.name} goes on",)
        if watch.open:
            kind = "interrupted" if interrupted else "failed"
            with suppress(NotWritten):  # what ends it is what is told
                self.record.note(kind, error.summary(), stopped=isinstance(error, Terminated))
            again = ("tpukit", "watch", watch.name)
            own = error.fix if kind == "failed" and error.fix and error.fix.arguments else None
            error.fix = own or Fix.command(*again, note="takes the watch up again")
            if isinstance(error, NameTaken):  # it would end the same way
                error.fix = Fix.command(*again, "--stop", note="ends the watch")
            known = self.seen.state or unseen
            error.otherwise = self.seen.delete_command() if known else None
        return error


@contextmanager
def _outlasted(*kinds: type[TpukitError]) -> Iterator[None]:
    """Raise `_Again` for what passes by itself: an outage of the API, and errors of these kinds."""
    try:
        yield
    except TpukitError as error:
        if isinstance(error, kinds) or passing(error):
            raise _Again(error) from error
        raise


def condition(found: Slice | None, queued_state: str = "") -> str:
    """Return one word: one of `LOST`, or one of the constants above.

    None is a slice that the API has answered there is not; `queued_state` is the state of the
    queued resource that it came from, where it did.
    """
    word = "vanished" if found is None else _WORDS.get(found.state, "")
    if word and queued_state in _SUSPENDED:
        return "suspended"
    if word or found is None:
        return word
    if not found.ready:
        return COMING
    return MAINTENANCE if found.health == "UNHEALTHY_MAINTENANCE" else READY
