"""The loop of a watch: read the slice, make it again if it is lost, and restart the command.

Each step is written to the watch's file before it is taken, and begins by reading the state of the
cloud and the workers. So after a kill at any moment, the same loop continues.
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
from tpukit.google.provider import SliceProvider
from tpukit.models import Slice, SliceRequest
from tpukit.slices import lifetime, naming
from tpukit.slices.capacity import Search
from tpukit.slices.ensure import check_owner
from tpukit.slices.last_seen import LastSeen, Refusals, passing
from tpukit.watch.saved_watches import (
    ENDED,
    RECOVERING,
    WATCHING,
    NotWritten,
    Record,
    Watch,
    WatchSpec,
    refreshed,
)
from tpukit.watch.workload import Ended, Workload

#: The most seconds between two reads of a slice at rest.
LOOK_SECONDS = 15.0
#: Seconds to read the slice after its command has failed: a preemption ends programs before the API
#: shows it.
SETTLE_SECONDS = 30.0
#: Seconds for a verified deletion.
END_SECONDS = 1200.0
#: Seconds in which a group of Compute Engine may get a lost worker back; nothing makes one again.
REPAIR_SECONDS = 900.0
#: Failed starts of the command in a row before the watch gives up.
_TRIES = 3

#: Final conditions. A slice is suspended if its queued resource is.
LOST = frozenset({"preempted", "terminated", "vanished", "suspended", "broken"})
#: Conditions that somebody has requested, or that pass by themselves.
MAINTENANCE, READY, COMING = "maintenance", "ready", "coming"
STOPPED, DELETING = "stopped", "being deleted"

_WORDS = {
    "PREEMPTED": "preempted",
    "TERMINATED": "terminated",
    "SUSPENDED": "suspended",
    "STOPPED": STOPPED,
    "DELETING": DELETING,
}
#: States of a queued resource that has lost or is losing its slices: Cloud TPU API reference,
#: `QueuedResourceState`.
_SUSPENDED = ("SUSPENDED", "SUSPENDING")


class _Again(Exception):
    """A step failed for a cause that passes by itself; the loop repeats it."""


@dataclass
class Watcher:
    """Runs one watch, continuing from the state in its file."""

    cleanup: Cleanup
    record: Record
    work: Workload
    clock: Clock
    owner: str
    say: Callable[[str], None]
    began: bool = field(default=False, init=False)
    failures: int = field(default=0, init=False)
    created: str = field(default="", init=False)  #: of the last seen slice
    settling: Deadline | None = field(default=None, init=False)
    maintenance: bool = field(default=False, init=False)
    repair: Deadline | None = field(default=None, init=False)  #: for a group that lacks a worker
    trouble: str = field(default="", init=False)  #: the last shown trouble

    def __post_init__(self) -> None:
        self.refusals = Refusals(Deadline.never(self.clock))

    def watch(self) -> int:
        """Return the exit status of the command when it has ended.

        Raises:
            SliceLost: the slice was lost too often, or its lifetime is over.
            TpukitError: somebody stopped or deleted the slice, or the slice or the command cannot
                be started again.
            Interrupted, Terminated: the slice and the command go on; the error says how to resume.
        """
        watch = self._watch
        state = "unknown" if watch.state == WATCHING else ""
        self.seen = LastSeen(watch.name, watch.zone, state, self.provider.bills, id=watch.id)
        try:
            while True:
                try:
                    status = self._until_recovered()
                    if status is not None:
                        self._finish(status)
                        return status
                    self.refusals.end()
                except _Again as again:
                    self._wait_on(*again.args)
                except (NotAllowed, NotAuthenticated) as refusal:
                    self._wait_out(refusal)
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

    def _finish(self, status: int) -> None:
        """Record the exit status, and delete the slice if that was requested."""
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
        """Wait after a refusal; raise it if it lasts too long, or if the API never accepted us."""
        accepted = self.seen.looked and self._watch.id
        if not (accepted and self.refusals.may_pass(refusal)):
            raise refusal
        self._wait_on(refusal)

    def _wait_on(self, cause: TpukitError) -> None:
        """Show the cause once, and wait; an outage or a full disk does not end the watch."""
        if cause.summary() != self.trouble:
            self.trouble = cause.summary()
            self.say(f"{self.trouble}; trying again")
        self.clock.sleep(LOOK_SECONDS)

    def _until_recovered(self) -> int | None:
        """Return the command's status when it has ended, or None after a step of recovery."""
        if self._watch.status is not None:
            return self._watch.status
        never = Deadline.never(self.clock)
        looks = self.seen.looks(self.provider, never, self.say, most=LOOK_SECONDS, outlasts=False)
        while True:
            with _outlasted():
                slice_ = next(looks)
            if slice_ and not self.seen.id:
                self._take(slice_)
            if slice_ and self._watch.state == WATCHING:
                self._refresh(slice_)
            now = self._condition(slice_)
            if now in LOST and self._watch.state == WATCHING:
                self._lose(now, slice_)
            if self._watch.state == RECOVERING:
                if slice_ and now == COMING and self._may_heal(slice_):
                    continue
                self._end_lost(now, slice_)
                self._make()
                return None
            if now in (STOPPED, DELETING):
                raise self._ended_by_others(now)
            self._tell_maintenance(now, slice_)
            if slice_ is None or now == COMING:
                continue
            if not self.began:
                self._begin(slice_)
            if self.began:
                self.refusals.end()
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

    def _condition(self, slice_: Slice | None) -> str:
        """Return the condition of the slice, from all that the API knows of it."""
        now = condition(slice_, self._queued_state(slice_))
        self.created = slice_.created if slice_ else self.created
        if now == "vanished" and self._was_deleted():
            now, self.seen.state = DELETING, ""
        return "broken" if self._is_broken(slice_) else now

    def _refresh(self, slice_: Slice) -> None:
        """Update the request from the slice, which may have been extended or changed."""
        request = refreshed(self._spec.request, slice_)
        if request != self._spec.request:
            with _outlasted(NotWritten):
                self.record.change(spec=replace(self._spec, request=request))

    def _take(self, slice_: Slice) -> None:
        """Watch this slice and no other of its name; raise `NameTaken` if it is not ours.

        During a recovery the file gets its id when it is READY, because that id is a lost slice's.
        """
        try:
            check_owner(slice_, self.owner)
        except NameTaken:
            self.seen.state = ""
            raise
        self.seen.id = slice_.id
        if self._watch.state == WATCHING:
            self.record.watch = replace(self._watch, id=slice_.id)

    def _queued_state(self, slice_: Slice | None) -> str:
        """Return the state of a lost slice's queued resource, or ""."""
        queued = self._spec.queued_resource
        if not queued or condition(slice_) not in (*LOST, DELETING):
            return ""
        with _outlasted(), suppress(NotFound):
            return self.provider.get_queued(self._watch.zone, queued).state
        return ""

    def _was_deleted(self) -> bool:
        """Return True if the API has an operation by which somebody deleted the slice."""
        if not self.created or self._watch.state == RECOVERING:
            return False
        zone, name = self._watch.zone, self._watch.name
        with suppress(TpukitError), _outlasted():
            return bool(self.provider.operations(zone, name, "delete", self.created))
        return False

    def _is_broken(self, slice_: Slice | None) -> bool:
        """Return True if a group has lacked a worker for so long that it stays so, and bills."""
        if slice_ is None or slice_.state != "REPAIRING" or not _is_rest(slice_):
            self.repair = None
            return False
        self.repair = self.repair or Deadline.after(self.clock, REPAIR_SECONDS)
        return self.repair.passed()

    def _may_heal(self, slice_: Slice) -> bool:
        """Return True for the watch's first group, which a killed watch made, if it lacks a worker.

        No loss of it is on record, so it gets the time of `_is_broken`.
        """
        return _is_rest(slice_) and not (self._watch.id or naming.lacks_group(slice_))

    def _begin(self, slice_: Slice) -> None:
        """Start the command, or follow it if it runs; a failure is tried again up to `_TRIES`."""
        try:
            with _outlasted():
                request = replace(self._request(slice_.zone), provisioning=slice_.provisioning)
                how = self.work.begin(slice_, request)
        except SliceLost as lost:
            self.say(lost.summary())  # the next read shows its state
            return
        except (TransportFailed, DeadlinePassed, VerificationFailed) as error:
            self.failures += 1
            if self.failures == _TRIES:
                raise
            self.say(f"{error.summary()}; trying again")
            return
        self.began, self.failures, self.settling = True, 0, None
        self._note(how, slice_.zone)

    def _settled(self, ended: Ended) -> bool:
        """Return True if `SETTLE_SECONDS` have passed since the command failed."""
        if self.settling is None:
            how = ended.why or f"the command ended with status {ended.status}"
            self.say(f"{how}; checking if the slice is lost")
            self.settling = Deadline.after(self.clock, SETTLE_SECONDS)
        return self.settling.passed()

    def _tell_maintenance(self, now: str, slice_: Slice | None) -> None:
        under = now == MAINTENANCE
        if slice_ and under != self.maintenance:
            self.maintenance = under
            word = "UNHEALTHY_MAINTENANCE: it may restart or be lost" if under else "healthy again"
            self._note(word, slice_.health_description)

    def _lose(self, what: str, slice_: Slice | None) -> None:
        """Record a loss before any step of recovery."""
        self.work.leave()
        self.began, self.maintenance, self.settling, self.repair = False, False, None, None
        detail = slice_.state if slice_ else "the API has no such slice"
        self.seen.state = slice_.state if slice_ else ""
        self._count(what, f"{detail} in {self._watch.zone}", state=RECOVERING)

    def _count(self, what: str, detail: str, **changes: object) -> None:
        """Record the reason for another recovery; raise `SliceLost` if there were too many."""
        watch = self._watch
        if watch.recoveries >= watch.spec.recoveries:
            self._note(f"{what}, and given up", detail, state=ENDED)
            raise SliceLost(
                f"slice {watch.name} is given up: {what}",
                reason=detail,
                why=f"it was recovered {watch.recoveries} times, the limit of --recoveries",
            )
        self._note(what, detail, recoveries=watch.recoveries + 1, **changes)

    def _end_lost(self, now: str, slice_: Slice | None) -> None:
        """Delete the lost slice if it still exists; raise if it may not be made again."""
        rest = _is_rest(slice_)  # which a killed recovery may have left
        if now == STOPPED and not rest:
            raise self._ended_by_others(now)
        if rest or now in LOST or now == DELETING:
            over = self._seconds_left() <= 0
            self._end_slice(slice_, for_good=over)
            if over:
                raise self._expired()

    def _seconds_left(self) -> float:
        """Return the seconds until the slice's end, by the API's clock; infinite without an end.

        If the request still has its time of creation, no slice was made yet, and its time has not
        begun.
        """
        labels = self._spec.request.labels
        end = lifetime.seconds_of(labels.get(lifetime.EXPIRES, ""))
        return inf if end is None or lifetime.CREATED in labels else end - self.provider.now()

    def _expired(self) -> SliceLost:
        self._note("its lifetime is over", state=ENDED)
        return SliceLost(f"slice {self._watch.name} is not made again: its lifetime is over")

    def _end_slice(self, slice_: Slice | None, *, for_good: bool, **changes: object) -> None:
        """Delete the slice and its queued resource, and `for_good` its rules too."""
        watch, spec = self._watch, self._spec
        if not (slice_ or watch.id):
            return  # the watch has made no slice yet
        expected = spec.request.expected
        last = slice_ or replace(expected, zone=watch.zone, id=watch.id, created=self.created)
        tags = (ssh_rule.rule_name(last),) if for_good else ()
        last = replace(last, queued_resource=spec.queued_resource, tags=tags)
        with _outlasted(DeadlinePassed):
            self.cleanup.end(last, Deadline.after(self.clock, END_SECONDS))
        self.seen.state = ""
        if slice_ or spec.queued_resource or changes:
            self._note("deleted", watch.zone, spec=replace(spec, queued_resource=""), **changes)

    def _make(self) -> None:
        """Make the slice in its zone or another, until there is capacity or its time is over."""
        places = dict.fromkeys([self._watch.zone, *self._spec.places])
        self._note("making it again", ", ".join(places))
        asking = Deadline.after(self.clock, min(self._spec.max_wait, self._seconds_left()))
        requests = [self._request(zone, **{naming.SEARCH: naming.LOOKING}) for zone in places]
        try:
            slice_ = self.work.make(Search(requests, asking, apart=True))
        except SliceLost as lost:
            raise _Again(lost) from lost  # the next read shows its state
        except TpukitError as error:
            if self._seconds_left() > 0:
                raise
            raise self._expired() from error
        self.seen.zone, self.seen.state, self.seen.id = slice_.zone, slice_.state, slice_.id
        self._note("made again", slice_.zone, state=WATCHING, zone=slice_.zone, id=slice_.id)

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
        """End the watch of a slice that its guard or somebody has stopped or deleted."""
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
            f"slice {self._watch.name} is {now}, but not by this watch",
            why="somebody, or a watch on another machine, requested it; this watch has ended",
            fix=start if now == STOPPED else None,
        )

    def _left(self, error: TpukitError) -> TpukitError:
        """Add the existing slice and how to resume the watch to an error; record its end."""
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
            with suppress(NotWritten):  # the first error is more important
                self.record.note(kind, error.summary(), stopped=isinstance(error, Terminated))
            again = ("tpukit", "watch", watch.name)
            theirs = [fix for fix in (error.fix, error.otherwise) if fix]
            own = error.fix if kind == "failed" and error.fix and error.fix.arguments else None
            error.fix = own or Fix.command(*again, note="resumes the watch")
            if isinstance(error, NameTaken):  # resuming would fail again
                error.fix = Fix.command(*again, "--stop", note="ends the watch")
            known = self.seen.state or unseen
            # While the slice is made again, the search's error has the command that deletes it.
            deletes = (fix for fix in theirs if "delete" in fix.arguments)
            error.otherwise = self.seen.delete_command() if known else next(deletes, None)
        return error


@contextmanager
def _outlasted(*kinds: type[TpukitError]) -> Iterator[None]:
    """Raise `_Again` for an outage of the API and for errors of these kinds."""
    try:
        yield
    except TpukitError as error:
        if isinstance(error, kinds) or passing(error):
            raise _Again(error) from error
        raise


def _is_rest(slice_: Slice | None) -> bool:
    """Return True for what is left of a group of Compute Engine: it lacks workers, or itself."""
    if slice_ is None or naming.HOSTS not in slice_.labels:
        return False
    return slice_.state == "REPAIRING" or naming.lacks_group(slice_)


def condition(slice_: Slice | None, queued_state: str = "") -> str:
    """Return the condition of a slice: one of `LOST`, or one of the constants above.

    `slice_` is None if the API says that it does not exist. `queued_state` is the state of its
    queued resource, if it has one.
    """
    word = "vanished" if slice_ is None else _WORDS.get(slice_.state, "")
    if word and queued_state in _SUSPENDED:
        return "suspended"
    if word or slice_ is None:
        return word
    if not slice_.ready:
        return COMING
    return MAINTENANCE if slice_.health == "UNHEALTHY_MAINTENANCE" else READY
