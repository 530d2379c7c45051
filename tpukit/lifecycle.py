"""Make, start, stop and delete slices: what the commands do, without any printing.

GA `CreateNode` has no request id, so a lost answer cannot be asked for again. A create is
therefore a convergence: the name is known before the call, a nonce in the labels tells our slice
from another's, and after every doubtful answer the slice is read back before anything is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpukit.clock import Deadline, polls
from tpukit.errors import (
    DeadlinePassed,
    NameTaken,
    NotFound,
    SliceLost,
    TpukitError,
)
from tpukit.existence import Sighting, get_or_none, naming_what_exists
from tpukit.journal import Journal
from tpukit.models import Slice, SliceRequest
from tpukit.naming import MANAGED, NONCE, OWNER
from tpukit.provider import Doubtful, SliceProvider
from tpukit.text import quote

#: Fields in which an existing slice must equal the request to be taken for the same one.
_SPEC = ("accelerator_type", "runtime_version", "provisioning")

OnState = Callable[[str], None]
Ask = Callable[[str, str], str]


@dataclass(frozen=True)
class Ensured:
    """A slice that is READY, and whether this very call made it."""

    slice: Slice
    created: bool


def create(
    provider: SliceProvider,
    request: SliceRequest,
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
) -> Ensured:
    """Make sure that the slice exists as requested and is READY, and return it.

    The request carries its nonce and owner (`labelled`). An equal slice of the same owner is
    adopted; a stopped one is started; one that is being deleted is waited out. Whatever ends this
    early, the error names what exists and how to delete it, and nothing is deleted.

    Raises:
        NameTaken: the name exists with another spec, another owner, or was not made by tpukit.
        SliceLost: it was preempted or terminated.
        NoCapacity, QuotaExceeded, NotAllowed, BadInput: the API refused.
        DeadlinePassed: it is not READY yet; it still exists.
    """
    seen = Sighting(request.name, request.zone, bills=provider.bills)
    with naming_what_exists(seen):
        return _Creation(provider, request, deadline, journal, on_state, seen).converge()


@dataclass
class _Creation:
    """One convergence of `create`; `operation` is that of our own call, once it was made."""

    provider: SliceProvider
    request: SliceRequest
    deadline: Deadline
    journal: Journal
    on_state: OnState
    seen: Sighting
    operation: str = ""
    appeared: bool = False
    started: bool = False

    def converge(self) -> Ensured:
        for _ in polls(self.deadline):
            found = get_or_none(self.provider, self.request.zone, self.request.name)
            self._note(found)
            if found is None:
                self._ask()
            elif found.state == "READY":
                check_same(found, self.request)
                return Ensured(found, found.labels.get(NONCE) == self.request.labels[NONCE])
            else:
                self._wait_for(found)
        raise DeadlinePassed(f"slice {self.request.name} is not READY yet", fix=self._resume())

    def _note(self, found: Slice | None) -> None:
        before, state = self.seen.state, found.state if found else ""
        # Before it is told: a signal may arrive while somebody hears of it.
        self.seen.state = state or ("requested" if self.operation else "")
        self.appeared = self.appeared or bool(self.operation and found)
        if state and state != before:
            self.on_state(state)

    def _ask(self) -> None:
        """Make the one call, or learn why the one that was made came to nothing."""
        if self.operation:
            failure = self._failure()
            if failure or self.appeared:
                self.seen.state = ""
            if failure:
                raise failure
            if self.appeared:
                raise SliceLost(f"slice {self.request.name} vanished while it was being created")
            return
        asked = self.request
        self.journal.record("create", asked.project, asked.zone, asked.name)
        self.seen.state = "requested"
        try:
            self.operation = self.provider.create(self.request)
        except NameTaken:
            return  # it appeared meanwhile: the next look tells whose it is
        except Doubtful as doubt:
            self.on_state(f"{doubt.what}; reading back")
        except TpukitError:
            self.seen.state = ""  # refused: nothing was made
            raise

    def _wait_for(self, found: Slice) -> None:
        if found.state == "DELETING":
            return
        check_same(found, self.request)
        if found.lost:
            raise SliceLost(
                f"slice {found.name} is {found.state} and does not come back",
                why="it keeps its quota until it is deleted",
                fix=self.seen.delete_command(),
            )
        failure = self._failure()
        if failure:
            raise failure
        if found.state == "STOPPED" and not self.started:
            self.operation = _asked(self.provider.start, found)
            self.started = bool(self.operation)

    def _failure(self) -> TpukitError | None:
        if not self.operation:
            return None
        verb = "start" if self.started else "create"
        return self.provider.failure(self.operation, f"{verb} slice {self.request.name}")

    def _resume(self) -> str:
        return f"{self.seen.delete_command()}   (or type the same command again to go on waiting)"


def check_same(found: Slice, request: SliceRequest) -> None:
    """Raise `NameTaken` unless the slice is ours and equal to the request in all that matters."""
    owner = found.labels.get(OWNER)
    if found.labels.get(MANAGED) != "1":
        raise NameTaken(
            f"slice {found.name} exists and was not made by tpukit",
            fix=f"choose another name, or set it up as it is: tpukit provision {found.name} jax",
        )
    if owner != request.labels[OWNER]:
        raise NameTaken(
            f"slice {found.name} exists and belongs to {owner}", fix="choose another name"
        )
    differences = [
        f"{field.replace('_', ' ')} is {getattr(found, field)}, not {getattr(request, field)}"
        for field in _SPEC
        if getattr(found, field) != getattr(request, field)
    ]
    if differences:
        raise NameTaken(
            f"slice {found.name} exists with another spec",
            why="; ".join(differences),
            fix=f"choose another name, or: {quote(['tpukit', 'delete', found.name])}",
        )


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
    """
    seen = Sighting(found.name, found.zone, found.state, provider.bills)
    operation = ""
    with naming_what_exists(seen):
        for _ in polls(deadline):
            current = get_or_none(provider, found.zone, found.name)
            if current is None:
                journal.record("delete", found.project, found.zone, found.name)
                return
            before, seen.state = seen.state, current.state
            if seen.state != before:
                on_state(seen.state)
            if current.state != "DELETING" and (
                not operation or provider.failure(operation, f"delete slice {found.name}")
            ):
                operation = _ask_delete(provider, found) or operation
        raise DeadlinePassed(f"slice {found.name} is not deleted yet", fix=seen.delete_command())


def _ask_delete(provider: SliceProvider, found: Slice) -> str:
    """Ask for the delete; a slice that is busy with another operation is asked again later."""
    try:
        return _asked(provider.delete, found)
    except NotFound:
        return ""
    except TpukitError as error:
        if error.reason.startswith("FAILED_PRECONDITION"):
            return ""
        raise


def _asked(ask: Ask, found: Slice) -> str:
    """Return the operation's name, or "" where the slice has to be looked at again first."""
    try:
        return ask(found.zone, found.name)
    except Doubtful:
        return ""


def start(provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Start a stopped slice and return it once it is READY."""
    turn = Turn("start", "STOPPED", provider.start)
    return wait(provider, found, "READY", deadline=deadline, on_state=on_state, turn=turn)


def stop(provider: SliceProvider, found: Slice, *, deadline: Deadline, on_state: OnState) -> Slice:
    """Stop a slice and return it once it is STOPPED."""
    turn = Turn("stop", "READY", provider.stop)
    return wait(provider, found, "STOPPED", deadline=deadline, on_state=on_state, turn=turn)


@dataclass
class Turn:
    """A change of state that is asked for where it is due, until an operation carries it out."""

    verb: str
    due: str  #: the state in which it is asked for
    ask: Ask
    operation: str = ""

    def take(self, provider: SliceProvider, current: Slice) -> None:
        if current.state != self.due:
            return
        if self.operation:
            failure = provider.failure(self.operation, f"{self.verb} slice {current.name}")
            if failure:
                raise failure
        else:
            self.operation = _asked(self.ask, current)


def wait(
    provider: SliceProvider,
    found: Slice,
    state: str,
    *,
    deadline: Deadline,
    on_state: OnState,
    turn: Turn | None = None,
) -> Slice:
    """Return the slice once it is in `state`; without a `turn` nothing is changed.

    Raises:
        SliceLost: it was lost, or vanished, while it was waited for.
        DeadlinePassed: it is in another state; it still exists.
    """
    seen = Sighting(found.name, found.zone, found.state, provider.bills)
    with naming_what_exists(seen):
        for _ in polls(deadline):
            current = get_or_none(provider, found.zone, found.name)
            if current is None:
                seen.state = ""
                raise SliceLost(f"slice {found.name} is gone")
            before, seen.state = seen.state, current.state
            if seen.state != before:
                on_state(seen.state)
            if current.state == state:
                return current
            if current.lost:
                raise SliceLost(f"slice {found.name} is {current.state}", fix=seen.delete_command())
            if turn:
                turn.take(provider, current)
        raise DeadlinePassed(f"slice {found.name} is not {state} yet")
