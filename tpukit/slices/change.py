"""Start, stop and delete slices, and wait for what becomes of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tpukit.clock import Deadline
from tpukit.cloud.provider import Doubtful, SliceProvider
from tpukit.errors import DeadlinePassed, NotFound, SliceLost, TpukitError
from tpukit.models import LOST_STATES, Slice
from tpukit.slices.find import gone
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import (
    Ask,
    LastSeen,
    OnState,
    last_seen,
    naming_what_exists,
)

#: States that a slice leaves only where somebody asks for it.
AT_REST = frozenset({"READY", "STOPPED", "HIDDEN", *LOST_STATES})
#: The states in which a start and a stop are asked for.
_STOPPED, _READY = "STOPPED", "READY"
HEALTHY = "HEALTHY"  #: a health of the API's, beside its states
#: Seconds for which a slice at rest may be busy with another operation, an update for one.
BUSY_SECONDS = 60.0


def delete(
    provider: SliceProvider,
    found: Slice,
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
    seen: LastSeen | None = None,
) -> None:
    """Delete a slice and return once the API has it no longer; another of its name stays.

    A delete that was accepted and then failed is asked for again until the deadline. The API
    deletes by name alone, so nothing parts a look at the slice from the delete that follows it.
    `seen` is kept current: its state is empty in the end.

    Raises:
        DeadlinePassed: it still exists.
        TpukitError: the API refused; the error names what exists.
    """
    provider = provider.within(deadline)
    seen = seen or last_seen(provider, found)
    deletion = _Deletion(provider, seen, deadline, on_state)
    with naming_what_exists(seen):
        for current in seen.looks(provider, deadline, on_state):
            if current is None:
                seen.state = ""
                place = (found.project, found.zone, found.name)
                journal.record("delete", *place, found.data_disks)
                return
            with suppress(Doubtful):  # an operation that cannot be read now is read again
                deletion.advance(current)
        why = deletion.refusal.summary() if deletion.refusal else ""
        what = f"slice {found.name} is not deleted yet"
        raise DeadlinePassed(what, why=why, fix=seen.delete_command())


@dataclass
class _Deletion:
    """A delete, asked for until it is under way; `refusal` is the last word against it."""

    provider: SliceProvider
    seen: LastSeen
    deadline: Deadline
    on_state: OnState
    operation: str = ""
    refusal: TpukitError | None = None
    patience: Deadline | None = None

    def advance(self, current: Slice) -> None:
        """Ask, where it is not under way; a slice that is busy is asked again later."""
        if current.state == "DELETING":
            return
        doing = f"delete slice {current.name}"
        if self.operation:
            failure = self.seen.failure(self.provider, self.operation, doing)
            if failure:
                self.operation = ""
                self._note(failure)
            return
        try:
            self.operation = self.seen.asked(self.provider.delete, current, self.on_state)
        except NotFound:
            return
        except TpukitError as error:
            if not error.reason.startswith("FAILED_PRECONDITION"):
                raise
            self._note(error)
            self.patience = self.patience or self.deadline.within(BUSY_SECONDS)
            if current.state in AT_REST and self.patience.passed():
                raise

    def _note(self, refusal: TpukitError) -> None:
        if self.refusal is None or self.refusal.what != refusal.what:
            self.on_state(f"{refusal.summary()}; asking again")
        self.refusal = refusal


def start(provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Start a stopped slice and return it once it is READY. Raises as `wait` does."""
    change = _Change("start", _STOPPED, provider.within(deadline).start)
    return wait(provider, found, "READY", deadline=deadline, on_state=on_state, change=change)


def stop(provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Stop a slice and return it once it is STOPPED. Raises as `wait` does."""
    change = _Change("stop", _READY, provider.within(deadline).stop)
    return wait(provider, found, "STOPPED", deadline=deadline, on_state=on_state, change=change)


@dataclass
class _Change:
    """A change of state: asked for where the slice is in state `due`, until it is under way."""

    verb: str
    due: str
    ask: Ask
    operation: str = ""

    def advance(
        self, provider: SliceProvider, current: Slice, seen: LastSeen, on_state: OnState
    ) -> None:
        if current.state != self.due:
            return
        if self.operation:
            doing = f"{self.verb} slice {current.name}"
            failure = seen.failure(provider, self.operation, doing)
            if failure:
                raise failure
        else:
            self.operation = seen.asked(self.ask, current, on_state)


def wait(
    provider: SliceProvider,
    found: Slice,
    state: str,
    *,
    deadline: Deadline,
    on_state: OnState,
    change: _Change | None = None,
) -> Slice:
    """Return the slice once it is in `state`; without a `change` nothing is asked for.

    READY is a slice with every address that was asked for, `HEALTHY` a READY one that the API calls
    healthy.

    Raises:
        SliceLost: it was lost, or vanished, while it was waited for.
        DeadlinePassed: it is in another state; it still exists.
        TpukitError: the change was refused or failed.
    """
    provider = provider.within(deadline)
    seen = last_seen(provider, found)
    with naming_what_exists(seen):
        for current in seen.looks(provider, deadline, on_state):
            if current is None:
                seen.state = ""
                raise gone(found)
            if _is(current, state):
                return current
            found = current
            if current.lost:
                raise SliceLost(
                    f"slice {found.name} is {current.state}",
                    exists=seen.exists(),
                    fix=seen.delete_command(),
                )
            if change:
                with suppress(Doubtful):  # an operation that cannot be read now is read again
                    change.advance(provider, current, seen, on_state)
        why = f"its health is {found.health or 'not known'}" if state == HEALTHY else ""
        raise DeadlinePassed(f"slice {found.name} is not {state} yet", why=why)


def _is(slice_: Slice, state: str) -> bool:
    if state == HEALTHY:
        return slice_.ready and slice_.health == HEALTHY
    return slice_.state == state and (slice_.ready or state != "READY")


def wait_gone(
    provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState
) -> None:
    """Return once the API answers that a slice is not found; nothing is asked for.

    Raises:
        DeadlinePassed: it still exists.
        TpukitError: the API refused; the error names what exists.
    """
    provider = provider.within(deadline)
    seen = last_seen(provider, found)
    with naming_what_exists(seen):
        for current in seen.looks(provider, deadline, on_state):
            if current is None:
                seen.state = ""
                return
        raise DeadlinePassed(f"slice {found.name} is not gone yet")
