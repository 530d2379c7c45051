"""Make, find, start, stop and delete slices: what the commands do, without any printing.

GA `CreateNode` has no request id, so a lost answer cannot be asked for again. A create is
therefore a convergence: the name is known before the call, a nonce in the labels tells our slice
from another's, and after every doubtful answer the slice is read back before anything is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches

from tpukit.clock import Deadline, polls
from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    NameTaken,
    NotFound,
    SliceLost,
    TpukitError,
    interruption,
)
from tpukit.journal import Journal
from tpukit.models import Slice, SliceRequest
from tpukit.provider import Doubtful, SliceProvider
from tpukit.text import one_line, quote

MANAGED, NONCE, OWNER = "tpukit-managed", "tpukit-nonce", "tpukit-owner"

#: Node ids as the API takes them: RFC 1035 labels.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
#: Fields in which an existing slice must equal the request to be taken for the same one.
_SPEC = ("accelerator_type", "runtime_version", "provisioning")

OnState = Callable[[str], None]
Ask = Callable[[str, str], str]


@dataclass
class Sighting:
    """What is known to exist while a wait goes on, for whoever has to say so when it ends early."""

    name: str
    zone: str
    state: str = ""

    def exists(self) -> list[str]:
        place = f"slice {self.name} in {self.zone}"
        return [f"{place}, {self.state} when last seen; it bills until it is deleted"]

    def delete_command(self) -> str:
        return quote(["tpukit", "delete", self.name, "--zone", self.zone])


def check_name(name: str) -> str:
    """Return `name` where the API would take it, else raise `BadInput`."""
    if _NAME.fullmatch(name):
        return name
    shown = one_line(name)[:80]
    suggestion = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:63].strip("-")
    raise BadInput(
        f"{shown!r} is not a slice name",
        why="a name is 1 to 63 lower-case letters, digits and hyphens, and starts with a letter",
        fix=f"for example: {suggestion}" if suggestion else "",
    )


def default_name(user: str, accelerator_type: str) -> str:
    """Return the name of a slice that was not given one: the same for the same user and type.

    A command typed again therefore finds the slice that the first one made.
    """
    safe = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-0123456789") or "user"
    return f"{safe[: 62 - len(accelerator_type)].strip('-')}-{accelerator_type}"


def label(text: str) -> str:
    """Return text as a label value: lower case letters, digits, hyphens and underscores."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def labelled(request: SliceRequest, owner: str, nonce: str) -> SliceRequest:
    """Return the request with the labels that say who made the slice, and by which call."""
    ours = {MANAGED: "1", OWNER: label(owner), NONCE: nonce}
    return replace(request, labels={**request.labels, **ours})


def find(provider: SliceProvider, name: str, zone: str = "") -> Slice:
    """Return the slice of that name, looked for in every zone unless one is given.

    Raises:
        NotFound: every zone answered, and none has it.
        BadInput: several zones have one.
        TpukitError: some zones did not answer and the others do not have it.
    """
    if zone:
        return provider.get(zone, name)
    listed = provider.list("-")
    matches = [each for each in listed.slices if each.name == name]
    if len(matches) > 1:
        zones = ", ".join(sorted(each.zone for each in matches))
        raise BadInput(
            f"slice {name} exists in several zones: {zones}",
            fix=f"add --zone {matches[0].zone}",
        )
    if matches:
        return matches[0]
    if listed.unreachable:
        silent = ", ".join(listed.unreachable)
        raise TpukitError(
            f"cannot tell whether slice {name} exists", why=f"no answer from {silent}"
        )
    close = get_close_matches(name, [each.name for each in listed.slices], n=1)
    fix = f"did you mean {close[0]}?" if close else "tpukit list shows the slices there are"
    raise NotFound(f"no slice {name} in any zone of the project", fix=fix)


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
    seen = Sighting(request.name, request.zone)
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
            found = _get(self.provider, self.request.zone, self.request.name)
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
        state = found.state if found else ""
        if state and state != self.seen.state:
            self.on_state(state)
        self.seen.state = state or ("requested" if self.operation else "")
        self.appeared = self.appeared or bool(self.operation and found)

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
        self.journal.record("create", self.request.project, self.request.zone, self.request.name)
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
    seen = Sighting(found.name, found.zone, found.state)
    operation = ""
    with naming_what_exists(seen):
        for _ in polls(deadline):
            current = _get(provider, found.zone, found.name)
            if current is None:
                journal.record("delete", found.project, found.zone, found.name)
                return
            if current.state != seen.state:
                on_state(current.state)
            seen.state = current.state
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
    seen = Sighting(found.name, found.zone, found.state)
    with naming_what_exists(seen):
        for _ in polls(deadline):
            current = _get(provider, found.zone, found.name)
            if current is None:
                seen.state = ""
                raise SliceLost(f"slice {found.name} is gone")
            if current.state != seen.state:
                on_state(current.state)
            seen.state = current.state
            if current.state == state:
                return current
            if current.lost:
                raise SliceLost(f"slice {found.name} is {current.state}", fix=seen.delete_command())
            if turn:
                turn.take(provider, current)
        raise DeadlinePassed(f"slice {found.name} is not {state} yet")


@contextmanager
def naming_what_exists(seen: Sighting) -> Iterator[None]:
    """Give every error that leaves here, signals too, what still exists and how to delete it."""
    try:
        yield
    except KeyboardInterrupt as signal:
        error = interruption(signal)
        _complete(error, seen)
        raise error from None
    except TpukitError as error:
        _complete(error, seen)
        raise


def _complete(error: TpukitError, seen: Sighting) -> None:
    if isinstance(error, NameTaken) or not seen.state or error.exists:
        return
    error.exists = tuple(seen.exists())
    error.fix = error.fix or seen.delete_command()


def _get(provider: SliceProvider, zone: str, name: str) -> Slice | None:
    try:
        return provider.get(zone, name)
    except NotFound:
        return None
