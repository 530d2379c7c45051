"""Start, stop and delete slices, and wait for what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass

from tpukit.clock import Deadline
from tpukit.cloud.provider import SliceProvider
from tpukit.errors import DeadlinePassed, NotFound, SliceLost, TpukitError
from tpukit.models import Slice
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import Ask, LastSeen, OnState, asked, naming_what_exists


def delete(
    provider: SliceProvider,
    found: Slice,
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
) -> None:
    """Delete a slice and return once the API answers that it is not found.

    A delete that was accepted and then failed is asked for again until the deadline.

    Raises:
        DeadlinePassed: it still exists.
        TpukitError: the API refused; the error names what exists.
    """
    seen = LastSeen(found.name, found.zone, found.state, provider.bills)
    operation = ""
    with naming_what_exists(seen):
        for current in seen.looks(provider, deadline, on_state):
            if current is None:
                journal.record("delete", found.project, found.zone, found.name)
                return
            if current.state != "DELETING" and (
                not operation or provider.failure(operation, f"delete slice {found.name}")
            ):
                operation = _ask_delete(provider, found) or operation
        raise DeadlinePassed(f"slice {found.name} is not deleted yet", fix=seen.delete_command())


def _ask_delete(provider: SliceProvider, found: Slice) -> str:
    """Ask for the delete; a slice that is busy with another operation is asked again later."""
    try:
        return asked(provider.delete, found)
    except NotFound:
        return ""
    except TpukitError as error:
        if error.reason.startswith("FAILED_PRECONDITION"):
            return ""
        raise


def start(provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Start a stopped slice and return it once it is READY. Raises as `wait` does."""
    change = _Change("start", "STOPPED", provider.start)
    return wait(provider, found, "READY", deadline=deadline, on_state=on_state, change=change)


def stop(provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Stop a slice and return it once it is STOPPED. Raises as `wait` does."""
    change = _Change("stop", "READY", provider.stop)
    return wait(provider, found, "STOPPED", deadline=deadline, on_state=on_state, change=change)


@dataclass
class _Change:
    """A change of state: asked for where the slice is in state `due`, until it is under way."""

    verb: str
    due: str
    ask: Ask
    operation: str = ""

    def advance(self, provider: SliceProvider, current: Slice) -> None:
        if current.state != self.due:
            return
        if self.operation:
            failure = provider.failure(self.operation, f"{self.verb} slice {current.name}")
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

    Raises:
        SliceLost: it was lost, or vanished, while it was waited for.
        DeadlinePassed: it is in another state; it still exists.
        TpukitError: the change was refused or failed.
    """
    seen = LastSeen(found.name, found.zone, found.state, provider.bills)
    with naming_what_exists(seen):
        for current in seen.looks(provider, deadline, on_state):
            if current is None:
                seen.state = ""
                raise SliceLost(f"slice {found.name} is gone")
            if current.state == state:
                return current
            if current.lost:
                raise SliceLost(
                    f"slice {found.name} is {current.state}",
                    exists=seen.exists(),
                    fix=seen.delete_command(),
                )
            if change:
                change.advance(provider, current)
        raise DeadlinePassed(f"slice {found.name} is not {state} yet")
