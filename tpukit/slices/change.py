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
from tpukit.slices.last_seen import LastSeen, OnState, last_seen, naming_what_exists

#: States that a slice leaves only if somebody asks for it.
AT_REST = frozenset({"READY", "STOPPED", "HIDDEN", *LOST_STATES})
HEALTHY = "HEALTHY"  #: a health of the API's, beside its states
GONE = "gone"  #: what a wait calls a slice that the API has no longer
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
    seen = seen or last_seen(provider, found)
    _Deletion(provider.within(deadline), found, GONE, deadline, on_state, seen).over()
    journal.record("delete", found.project, found.zone, found.name, found.data_disks)


def start(provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Start a stopped slice and return it once it is READY. Raises as `wait` does."""
    seen, provider = last_seen(provider, found), provider.within(deadline)
    return _Change(provider, found, "READY", deadline, on_state, seen).over()


def stop(provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Stop a slice and return it once it is STOPPED. Raises as `wait` does."""
    seen, provider = last_seen(provider, found), provider.within(deadline)
    return _Change(provider, found, "STOPPED", deadline, on_state, seen).over()


def wait(
    provider: SliceProvider, found: Slice, state: str, *, deadline: Deadline, on_state: OnState
) -> Slice:
    """Return the slice once it is in `state`; nothing is asked for.

    READY is a slice with every address that was asked for, `HEALTHY` a READY one that the API calls
    healthy. `GONE` returns the slice as it was last.

    Raises:
        SliceLost: it was lost, or vanished, while it was waited for.
        DeadlinePassed: it is in another state; it still exists.
        TpukitError: the change was refused or failed.
    """
    seen = last_seen(provider, found)
    return _Wait(provider.within(deadline), found, state, deadline, on_state, seen).over()


@dataclass
class _Wait:
    """A wait for a state; `refusal` is the last word against it."""

    provider: SliceProvider
    found: Slice
    state: str
    deadline: Deadline
    on_state: OnState
    seen: LastSeen
    operation: str = ""
    refusal: TpukitError | None = None

    def over(self) -> Slice:
        """Return the slice once it is in the state."""
        with naming_what_exists(self.seen):
            for current in self.seen.looks(self.provider, self.deadline, self.on_state):
                if current is None:
                    self.seen.state = ""
                    if self.state == GONE:
                        return self.found
                    raise gone(self.found)
                if self._reached(current):
                    return current
                self.found = current
                if current.lost and self.state != GONE:
                    raise SliceLost(
                        f"slice {current.name} is {current.state}",
                        exists=self.seen.exists(),
                        fix=self.seen.delete_command(),
                    )
                with suppress(Doubtful):  # an operation that cannot be read now is read again
                    self._advance(current)
            why = self.refusal.summary() if self.refusal else ""
            if self.state == HEALTHY:
                why = f"its health is {self.found.health or 'not known'}"
            raise DeadlinePassed(f"slice {self.found.name} is not {self.state} yet", why=why)

    def _reached(self, current: Slice) -> bool:
        if self.state == HEALTHY:
            return current.ready and current.health == HEALTHY
        return current.state == self.state and (current.ready or self.state != "READY")

    def _advance(self, current: Slice) -> None:
        """Ask for nothing."""


class _Change(_Wait):
    """A start or a stop: asked for while the slice is in the opposite state, until it fails."""

    def _advance(self, current: Slice) -> None:
        verb, due = ("start", "STOPPED") if self.state == "READY" else ("stop", "READY")
        if current.state != due:
            return
        if not self.operation:
            self.operation = self.seen.asked(getattr(self.provider, verb), current, self.on_state)
        elif failure := self.seen.failure(
            self.provider, self.operation, f"{verb} slice {current.name}"
        ):
            raise failure


@dataclass
class _Deletion(_Wait):
    """A delete, asked for until it is under way; a slice that is busy is asked again later."""

    patience: Deadline | None = None

    def _advance(self, current: Slice) -> None:
        if current.state == "DELETING":
            return
        if self.operation:
            doing = f"delete slice {current.name}"
            if failure := self.seen.failure(self.provider, self.operation, doing):
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
