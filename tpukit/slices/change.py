"""Start, stop and delete slices, and wait for what becomes of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tpukit.clock import Deadline
from tpukit.cloud.provider import Doubtful, SliceProvider
from tpukit.errors import DeadlinePassed, NotFound, SliceLost, TpukitError
from tpukit.models import LOST_STATES, Slice
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import (
    Ask,
    LastSeen,
    OnState,
    asked,
    last_seen,
    naming_what_exists,
)

#: States that a slice leaves only where somebody asks for it.
AT_REST = frozenset({"READY", "STOPPED", *LOST_STATES})
#: The states in which a start and a stop are asked for.
_STOPPED, _READY = "STOPPED", "READY"
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
    """Delete a slice and return once the API answers that it is not found.

    A delete that was accepted and then failed is asked for again until the deadline. `seen` is kept
    current: its state is empty in the end.

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
            if not failure:
                return
            self._note(failure)
        try:
            self.operation = asked(self.provider.delete, current) or self.operation
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


def plan_start(provider: SliceProvider, found: Slice) -> None:
    """Ask for what `start` asks for, once, of a client that is planning."""
    if found.state == _STOPPED:
        provider.start(found.zone, found.name)


def plan_stop(provider: SliceProvider, found: Slice) -> None:
    """Ask for what `stop` asks for, once, of a client that is planning."""
    if found.state == _READY:
        provider.stop(found.zone, found.name)


@dataclass
class _Change:
    """A change of state: asked for where the slice is in state `due`, until it is under way."""

    verb: str
    due: str
    ask: Ask
    operation: str = ""

    def advance(self, provider: SliceProvider, current: Slice, seen: LastSeen) -> None:
        if current.state != self.due:
            return
        if self.operation:
            doing = f"{self.verb} slice {current.name}"
            failure = seen.failure(provider, self.operation, doing)
            if failure:
                raise failure
        else:
            self.operation = asked(self.ask, current)


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

    READY is a slice with every address that was asked for.

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
                raise SliceLost(f"slice {found.name} is gone")
            if current.state == state and (current.ready or state != "READY"):
                return current
            if current.lost:
                raise SliceLost(
                    f"slice {found.name} is {current.state}",
                    exists=seen.exists(),
                    fix=seen.delete_command(),
                )
            if change:
                with suppress(Doubtful):  # an operation that cannot be read now is read again
                    change.advance(provider, current, seen)
        raise DeadlinePassed(f"slice {found.name} is not {state} yet")


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
