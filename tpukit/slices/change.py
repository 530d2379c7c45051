"""Start, stop and delete slices, and wait for their states."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tpukit.clock import Deadline
from tpukit.errors import DeadlinePassed, TpukitError
from tpukit.google.provider import Doubtful, SliceProvider
from tpukit.models import LOST_STATES, Slice
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import LastSeen, OnState, last_seen, naming_what_exists
from tpukit.slices.losses import gone, loss
from tpukit.slices.naming import lacks_group

#: States that a slice leaves only on request.
AT_REST = frozenset({"READY", "STOPPED", "HIDDEN", *LOST_STATES})
HEALTHY = "HEALTHY"  #: a value of the API's health, not of its state
GONE = "gone"  #: the state, for a wait, of a slice that no longer exists
#: Seconds to wait if a slice at rest is busy with another operation, such as an update.
BUSY_SECONDS = 60.0


def delete(
    provider: SliceProvider,
    slice_: Slice,
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
    seen: LastSeen | None = None,
    stays: Callable[[Slice], bool] = lambda current: False,
) -> bool:
    """Delete a slice and return True when it no longer exists; another slice of its name stays.

    If an accepted delete fails, it is requested again until the deadline. The API deletes by name,
    so the slice is checked immediately before each delete. `stays` gets it then, too: if it returns
    True, for example because somebody uses the slice meanwhile, the slice stays, and the result is
    False. `seen` is kept current: in the end its state is empty.

    Raises:
        DeadlinePassed: it still exists.
        TpukitError: the API refused; the error names what exists.
    """
    seen = seen or last_seen(provider, slice_)
    provider = provider.within(deadline).only(slice_.api)
    operation, doing = "", f"delete slice {slice_.name}"
    refusal: TpukitError | None = None
    patience: Deadline | None = None
    with naming_what_exists(seen):
        for current in seen.looks(provider, deadline, on_state):
            if current is None:
                seen.state = ""
                journal.record(
                    "delete", slice_.project, slice_.zone, slice_.name, slice_.data_disks
                )
                return True
            if current.state == "DELETING":
                continue
            try:
                if not operation:
                    # What is left of a half deleted group has the labels that it was made with.
                    if not lacks_group(current) and stays(current):
                        return False
                    operation = seen.asked(provider.delete, current, on_state)
                    continue
                failure = seen.failure(provider, operation, doing)
            except Doubtful:
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
        raise DeadlinePassed(f"slice {slice_.name} is not {GONE} yet", why=why)


def start(
    provider: SliceProvider, slice_: Slice, *, deadline: Deadline, on_state: OnState
) -> Slice:
    """Start a stopped slice and return it when it is READY. Raises the errors of `wait`."""
    return wait(provider, slice_, "READY", deadline=deadline, on_state=on_state, verb="start")


def stop(provider: SliceProvider, slice_: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Stop a slice and return it when it is STOPPED. Raises the errors of `wait`."""
    return wait(provider, slice_, "STOPPED", deadline=deadline, on_state=on_state, verb="stop")


def wait(
    provider: SliceProvider,
    slice_: Slice,
    state: str,
    *,
    deadline: Deadline,
    on_state: OnState,
    verb: str = "",
) -> Slice:
    """Return the slice when it is in `state`; request `verb` while it is in the opposite state.

    READY needs every requested address; `HEALTHY` needs READY and the API's health HEALTHY. `GONE`
    returns the slice as it was last seen.

    Raises:
        SliceLost: it was preempted, terminated or deleted during the wait.
        DeadlinePassed: it is in another state; it still exists.
        TpukitError: the change was refused or failed.
    """
    again = (verb,) if verb else ("wait", "--for", state.lower())
    seen, provider = last_seen(provider, slice_, *again), provider.within(deadline).only(slice_.api)
    due, operation = {"start": "STOPPED", "stop": "READY"}.get(verb), ""
    with naming_what_exists(seen):
        for current in seen.looks(provider, deadline, on_state):
            if current is None:
                seen.state = ""
                if state == GONE:
                    return slice_
                raise gone(slice_)
            if _reached(current, state):
                return current
            slice_ = current
            if current.lost and state != GONE:
                raise loss(current)
            if current.state != due:
                continue
            with suppress(Doubtful):  # the next round reads the operation again
                if not operation:
                    operation = seen.asked(getattr(provider, verb), current, on_state)
                elif failure := seen.failure(provider, operation, f"{verb} slice {slice_.name}"):
                    raise failure
        why = f"its health is {slice_.health or 'unknown'}" if state == HEALTHY else ""
        raise DeadlinePassed(f"slice {slice_.name} is not {state} yet", why=why)


def _reached(current: Slice, state: str) -> bool:
    if state == HEALTHY:
        return current.ready and current.health == HEALTHY
    return current.state == state and (current.ready or state != "READY")
