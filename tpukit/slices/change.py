"""Start, stop and delete slices, and wait for what becomes of them."""

from __future__ import annotations

from contextlib import suppress

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
    seen, provider = seen or last_seen(provider, found), provider.within(deadline)
    operation, doing = "", f"delete slice {found.name}"
    refusal: TpukitError | None = None
    patience: Deadline | None = None
    with naming_what_exists(seen):
        for current in seen.looks(provider, deadline, on_state):
            if current is None:
                seen.state = ""
                journal.record("delete", found.project, found.zone, found.name, found.data_disks)
                return
            if current.state == "DELETING":
                continue
            try:
                if not operation:
                    operation = seen.asked(provider.delete, current, on_state)
                    continue
                failure = seen.failure(provider, operation, doing)
            except (Doubtful, NotFound):
                continue
            except TpukitError as error:
                if not error.reason.startswith("FAILED_PRECONDITION"):
                    raise
                patience = patience or deadline.within(BUSY_SECONDS)
                if current.state in AT_REST and patience.passed():
                    raise
                failure = error
            if failure:
                if refusal is None or refusal.what != failure.what:
                    on_state(f"{failure.summary()}; asking again")
                operation, refusal = "", failure
        why = refusal.summary() if refusal else ""
        raise DeadlinePassed(f"slice {found.name} is not {GONE} yet", why=why)


def start(provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Start a stopped slice and return it once it is READY. Raises as `wait` does."""
    return wait(provider, found, "READY", deadline=deadline, on_state=on_state, verb="start")


def stop(provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Stop a slice and return it once it is STOPPED. Raises as `wait` does."""
    return wait(provider, found, "STOPPED", deadline=deadline, on_state=on_state, verb="stop")


def wait(
    provider: SliceProvider,
    found: Slice,
    state: str,
    *,
    deadline: Deadline,
    on_state: OnState,
    verb: str = "",
) -> Slice:
    """Return the slice once it is in `state`; `verb` is asked for while it is in the opposite one.

    READY is a slice with every address that was asked for, `HEALTHY` a READY one that the API calls
    healthy. `GONE` returns the slice as it was last.

    Raises:
        SliceLost: it was lost, or vanished, while it was waited for.
        DeadlinePassed: it is in another state; it still exists.
        TpukitError: the change was refused or failed.
    """
    seen, provider = last_seen(provider, found), provider.within(deadline)
    due, operation = {"start": "STOPPED", "stop": "READY"}.get(verb), ""
    with naming_what_exists(seen):
        for current in seen.looks(provider, deadline, on_state):
            if current is None:
                seen.state = ""
                if state == GONE:
                    return found
                raise gone(found)
            if _reached(current, state):
                return current
            found = current
            if current.lost and state != GONE:
                what = f"slice {current.name} is {current.state}"
                raise SliceLost(what, exists=seen.exists(), fix=seen.delete_command())
            if current.state != due:
                continue
            with suppress(Doubtful):  # an operation that cannot be read now is read again
                if not operation:
                    operation = seen.asked(getattr(provider, verb), current, on_state)
                elif failure := seen.failure(provider, operation, f"{verb} slice {found.name}"):
                    raise failure
        why = f"its health is {found.health or 'not known'}" if state == HEALTHY else ""
        raise DeadlinePassed(f"slice {found.name} is not {state} yet", why=why)


def _reached(current: Slice, state: str) -> bool:
    if state == HEALTHY:
        return current.ready and current.health == HEALTHY
    return current.state == state and (current.ready or state != "READY")
