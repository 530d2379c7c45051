"""The last seen state of a slice, for waits and for the errors that end them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tpukit.clock import Deadline, polls
from tpukit.errors import (
    Fix,
    Interrupted,
    NameTaken,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    SliceLost,
    Terminated,
    TpukitError,
    interruption,
)
from tpukit.google.failures import UNREADABLE
from tpukit.google.provider import Doubtful, SliceProvider
from tpukit.models import QueuedResource, Slice

Thing = TypeVar("Thing")
Named = TypeVar("Named", Slice, QueuedResource)
OnState = Callable[[str], None]

REQUESTED = "requested"  #: the state of a slice whose create was accepted, until a read shows it
#: Seconds for which an API that has accepted us may refuse us, for example until a new login.
REFUSED_SECONDS = 600.0


class Refusals:
    """Refusals by an API that has accepted us, which may pass for `REFUSED_SECONDS`."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._until: Deadline | None = None  #: the end of the patience since the first refusal

    def end(self) -> None:
        """Forget the refusals: the API accepts us again."""
        self._until = None

    def may_pass(self, error: TpukitError) -> bool:
        """Return True if an error is a refusal, and neither its time nor the deadline is over."""
        if not isinstance(error, (NotAllowed, NotAuthenticated)):
            return False
        self._until = self._until or self._deadline.within(REFUSED_SECONDS)
        return not self._until.passed()


@dataclass
class LastSeen:
    """The last known state of a slice; `state` is empty if it does not exist or is unknown.

    `looked` is True after the first answer. With `doubt`, the slice may still appear, because a
    create was not confirmed. `zone` is empty if the slice could be in several zones.
    """

    name: str
    zone: str
    state: str = ""
    bills: bool = True
    doubt: bool = False
    looked: bool = field(default=False, init=False)
    refusal: str = field(default="", init=False)  #: why the last call must be repeated
    silence: str = field(default="", init=False)  #: since when and how the API fails to answer
    id: str = ""  #: the API's id, if known; a slice with another id is another slice
    replaced: bool = field(default=False, init=False)  #: True if another slice has the name
    begun: str = field(default="", init=False)  #: describes work that goes on after an interrupt
    again: Fix | None = None  #: continues a command that keeps the slice; None: delete the slice
    operation_refusals: Refusals | None = field(default=None, init=False)

    def looks(
        self,
        provider: SliceProvider,
        deadline: Deadline,
        on_state: OnState,
        *,
        most: float = 5.0,
        outlasts: bool = True,
    ) -> Iterator[Slice | None]:
        """Yield the slice until the deadline, or None if it is missing or another has its name.

        `on_state` gets each new state; a missing slice keeps its last state. After the first
        answer, an outage does not end the wait, and if `outlasts`, nor do `Refusals`; `on_state`
        gets a line when it begins and ends. One unreadable answer never ends it. `most` is the
        longest pause in seconds between two reads. Raises all other read errors.
        """
        clock, provider = deadline.clock, provider.within(deadline)
        refusals, self.operation_refusals = Refusals(deadline), Refusals(deadline)
        poll, answers = provider.once(), ""
        answered, asked_at, odd = bool(self.state), 0.0, False
        for _ in polls(deadline, most=most):
            asked_at = asked_at if self.silence else clock.time()
            try:
                slice_ = self._look(poll if answered else provider)
            except TpukitError as error:
                refused = outlasts and self.looked and refusals.may_pass(error)
                again = answered or (error.reason.startswith(UNREADABLE) and not odd)
                if not (refused or (again and passing(error))):
                    raise
                odd = True
                answers = "accepts us" if refused else "answers"
                self._note_silence(error, asked_at, on_state)
                continue
            if self.silence:
                self.silence = ""
                on_state(f"the API {answers} again, after {clock.time() - asked_at:.0f} s")
            refusals.end()
            answered = self.looked = True
            if slice_ and _shown(slice_) != self.state:
                self.state = _shown(slice_)  # set first: on_state may be interrupted
                on_state(self.state)
            yield slice_

    def failure(self, provider: SliceProvider, operation: str, doing: str) -> TpukitError | None:
        """Return the error of a failed operation, else None; raise `Doubtful` if unreadable now."""
        refusals = self.operation_refusals
        try:
            failure = provider.once().failure(operation, doing) if operation else None
        except TpukitError as error:
            if passing(error) or (refusals and refusals.may_pass(error)):
                raise Doubtful(error.what) from error
            raise
        if refusals:
            refusals.end()
        return failure

    def asked(self, ask: Callable[[str, str], str], slice_: Slice, on_state: OnState) -> str:
        """Call `ask` and return the operation's name, or "" if the call should be repeated later.

        `on_state` gets each reason for repeating once.
        """
        try:
            operation = ask(slice_.zone, slice_.name)
        except TpukitError as error:
            if not (passing(error) or isinstance(error, NotFound)):
                raise  # after NOT_FOUND, the next look tells whether the slice is gone
            if error.what != self.refusal:
                on_state(f"{error.what}; asking again")
            self.refusal = error.what
            return ""
        self.refusal = ""
        return operation

    def exists(self) -> list[str]:
        """Return the lines of an error about the existing slice."""
        return [f"{self._place}, {self.state} when last seen; it {self._costs}"]

    def delete_command(self) -> Fix:
        """Return the command that deletes the slice."""
        return self._command("delete")

    def complete(self, error: TpukitError) -> None:
        """Add to an error the slice that exists or may appear, and the commands to handle it."""
        known = any(line.startswith(f"{self._place},") for line in error.exists)
        if isinstance(error, SliceLost) or known:
            return  # these errors already say what exists
        if isinstance(error, NameTaken) and error.retry == "other-zone":
            return  # somebody else's slice has the name
        command = self.again or self.delete_command()
        if isinstance(error, (Interrupted, Terminated)):  # the user gets both commands
            error.fix, command = error.fix or self.again, self.delete_command()
        lines = [error.why, self.refusal, self.silence]
        if self.state:
            error.exists = (*self.exists(), *error.exists)
            error.slices = (*error.slices, (self.zone, self.name))
            if error.otherwise and "delete" in error.otherwise.arguments:
                command = error.otherwise  # which may name the slice more precisely, by its API
            error.otherwise = command if error.fix not in (None, command) else error.otherwise
            error.fix = error.fix or command
        elif self.doubt:
            lines += [error.fix.note or str(error.fix)] if error.fix else []
            lines += [f"{self._place} may still appear: its create was not confirmed"]
            lines += [f"then it {self._costs}, and the same command continues with it"]
            error.fix, error.otherwise = self._command("describe"), command
        elif not self.looked and isinstance(error, (Interrupted, Terminated)):
            lines += [f"{self._place} was not looked up yet; if it exists, it {self._costs}"]
            error.fix, error.otherwise = self._command("describe"), command
        error.why = "\n".join(filter(None, lines))

    @property
    def _place(self) -> str:
        return f"slice {self.name} in {self.zone}" if self.zone else f"slice {self.name}"

    @property
    def _costs(self) -> str:
        until = "gone" if self.state == "DELETING" else "deleted"
        return f"{'bills' if self.bills else 'stays'} until it is {until}"

    def _command(self, verb: str) -> Fix:
        return Fix.command("tpukit", verb, self.name, *(["--zone", self.zone] if self.zone else []))

    def _look(self, provider: SliceProvider) -> Slice | None:
        reads = [partial(provider.get, self.zone, self.name)]
        if self.state not in ("", REQUESTED):
            reads.append(partial(in_list, provider.list, provider.get, self.zone, self.name))
        slice_ = unless_gone(*reads)
        if slice_ is None:
            return None
        self.replaced = self.id not in ("", slice_.id)
        return None if self.replaced else slice_

    def _note_silence(self, error: TpukitError, since: float, on_state: OnState) -> None:
        if not self.silence:
            at = time.strftime("%H:%M:%S UTC", time.gmtime(since))
            cause = "no answer from" if passing(error) else "refused by"
            self.silence = f"{cause} the API since {at}: {error.what}"
            on_state(f"{self.silence}; still waiting")


def last_seen(provider: SliceProvider, slice_: Slice, *again: str) -> LastSeen:
    """Return the last seen state for a slice that was just read.

    `again` are the verb and the flags that continue a command which keeps the slice.
    """
    seen = LastSeen(slice_.name, slice_.zone, slice_.state, provider.bills, id=slice_.id)
    if again:
        verb, *flags = again
        seen.again = Fix.command("tpukit", verb, slice_.name, "--zone", slice_.zone, *flags)
    return seen


def interrupted(signal: KeyboardInterrupt, seen: Iterable[LastSeen]) -> TpukitError:
    """Return the error for a signal, with the slices that exist or were not looked up yet."""
    error = interruption(signal)
    left = [known for known in seen if known.state or not known.looked]
    if len(left) == 1:
        left[0].complete(error)
    elif left:
        error.exists = tuple(line for known in left if known.state for line in known.exists())
        unknown = [known.name for known in left if not known.state]
        error.why = f"not looked up yet: {', '.join(unknown)}" if unknown else ""
        words = [known.name for known in left] + (["--missing-ok"] if unknown else [])
        error.fix = Fix.command("tpukit", "delete", *words)
    return error


@contextmanager
def naming_what_exists(seen: LastSeen) -> Iterator[None]:
    """Add to every error and signal in the block the slice that exists and how to delete it."""
    try:
        yield
    except KeyboardInterrupt as signal:
        error = interruption(signal)
        seen.complete(error)
        error.exists += (seen.begun,) if seen.begun else ()
        raise error from None
    except TpukitError as error:
        seen.complete(error)
        raise


def unless_gone(*reads: Callable[[], Thing]) -> Thing | None:
    """Return the first result of these reads, or None if each raises `NotFound`.

    A thing that was just there is gone only if two reads say so: one may be stale.
    """
    for read in reads:
        with suppress(NotFound):
            return read()
    return None


def in_list(
    list_: Callable[[str], tuple[Sequence[Named], Sequence[str]]],
    get: Callable[[str, str], Named],
    zone: str,
    name: str,
) -> Named:
    """Return a thing from the list of its zone, which may show a thing that `get` does not.

    If the list cannot be read, returns the thing of `get`. Raises `NotFound` as `get` does.
    """
    try:
        things, unreachable = list_(zone)
    except TpukitError:
        return get(zone, name)
    if zone in unreachable:
        return get(zone, name)
    for thing in things:
        if thing.name == name:
            return thing
    raise NotFound(f"{name} is not in the list")


def passing(error: TpukitError) -> bool:
    """Return True if an error may pass: the same call may succeed a little later."""
    lost = isinstance(error, Doubtful) or error.reason.startswith(UNREADABLE)
    return lost or error.retry == "same-zone"


def _shown(slice_: Slice) -> str:
    """Return the state, and the missing addresses of a READY slice."""
    lacking = slice_.unaddressed if slice_.state == "READY" else ""
    return f"READY, {lacking}" if lacking else slice_.state
