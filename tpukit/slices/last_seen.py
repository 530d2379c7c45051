"""What a slice was when it was last seen: for waits, and for errors that end them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tpukit.clock import Deadline, polls
from tpukit.cloud.failures import UNREADABLE
from tpukit.cloud.provider import Doubtful, SliceProvider
from tpukit.errors import (
    Fix,
    Interrupted,
    NameTaken,
    NotFound,
    SliceLost,
    Terminated,
    TpukitError,
    interruption,
)
from tpukit.models import Slice

OnState = Callable[[str], None]


@dataclass
class LastSeen:
    """What is known to exist; `state` is empty where nothing is, or nobody has `looked`.

    With `doubt`, what nobody has seen may still appear: a create was not answered. `zone` is empty
    where there are several that it may be in.
    """

    name: str
    zone: str
    state: str = ""
    bills: bool = True
    doubt: bool = False
    looked: bool = field(default=False, init=False)
    refusal: str = field(default="", init=False)  #: why the last call has to be made again
    silence: str = field(default="", init=False)  #: since when the API does not answer, and how
    id: str = ""  #: the slice's, once it is known: another one under the name is none
    replaced: bool = field(default=False, init=False)  #: whether another one was under the name
    begun: str = field(default="", init=False)  #: what goes on there when whoever waits has gone

    def looks(
        self,
        provider: SliceProvider,
        deadline: Deadline,
        on_state: OnState,
        *,
        most: float = 5.0,
    ) -> Iterator[Slice | None]:
        """Yield the slice, or None if there is none or another one, until the deadline.

        `on_state` gets each new state; a slice that is not found keeps its last one. Once the API
        has answered, an outage ends nothing: `on_state` is told when it begins and ends. `most` are
        the seconds between two looks, at most. Raises whatever else a read raises.
        """
        clock, provider = deadline.clock, provider.within(deadline)
        poll = provider.once()
        answered, asked_at = bool(self.state), 0.0
        for _ in polls(deadline, most=most):
            asked_at = asked_at if self.silence else clock.time()
            try:
                found = self._look(poll if answered else provider)
            except TpukitError as error:
                if not (answered and passing(error)):
                    raise
                self._note_silence(error, asked_at, on_state)
                continue
            if self.silence:
                self.silence = ""
                on_state(f"the API answers again, after {clock.time() - asked_at:.0f} s")
            answered = self.looked = True
            if found and _shown(found) != self.state:
                self.state = _shown(found)  # before it is shown: a signal may arrive meanwhile
                on_state(self.state)
            yield found

    def failure(self, provider: SliceProvider, operation: str, doing: str) -> TpukitError | None:
        """Return why an operation failed; raise `Doubtful` where that cannot be read now."""
        try:
            return provider.once().failure(operation, doing) if operation else None
        except TpukitError as error:
            if passing(error):
                raise Doubtful(error.what) from error
            raise

    def asked(self, ask: Callable[[str, str], str], slice_: Slice, on_state: OnState) -> str:
        """Return the operation's name, or "" if the slice has to be looked at before asking again.

        A reason to ask again is told once.
        """
        try:
            operation = ask(slice_.zone, slice_.name)
        except TpukitError as error:
            if not passing(error):
                raise
            if error.what != self.refusal:
                on_state(f"{error.what}; asking again")
            self.refusal = error.what
            return ""
        self.refusal = ""
        return operation

    def exists(self) -> list[str]:
        """Return what an error says is left."""
        return [f"{self._place}, {self.state} when last seen; it {self._costs}"]

    def delete_command(self) -> Fix:
        """Return the command that deletes the slice."""
        return self._command("delete")

    def complete(self, error: TpukitError) -> None:
        """Say in an error that ends a wait what exists, or may still appear, and what to type."""
        if isinstance(error, (NameTaken, SliceLost)) or error.exists:
            return  # a lost slice's error says itself what is left of it
        delete, lines = self.delete_command(), [error.why, self.refusal, self.silence]
        if self.state:
            error.exists = tuple(self.exists())
            error.otherwise = delete if error.fix not in (None, delete) else error.otherwise
            error.fix = error.fix or delete
        elif self.doubt:
            lines += [error.fix.note or str(error.fix)] if error.fix else []
            lines += [f"{self._place} may still appear: a create of it was not confirmed"]
            lines += [f"then it {self._costs}, and the same command takes it up"]
            error.fix, error.otherwise = self._command("describe"), delete
        elif not self.looked and isinstance(error, (Interrupted, Terminated)):
            lines += [f"whether {self._place} exists was not asked yet; if so, it {self._costs}"]
            error.fix, error.otherwise = self._command("describe"), delete
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
        try:
            found = provider.get(self.zone, self.name)
        except NotFound:
            return None
        self.replaced = self.id not in ("", found.id)
        return None if self.replaced else found

    def _note_silence(self, error: TpukitError, since: float, on_state: OnState) -> None:
        if not self.silence:
            at = time.strftime("%H:%M:%S UTC", time.gmtime(since))
            self.silence = f"no answer from the API since {at}: {error.what}"
            on_state(f"{self.silence}; waiting on")


def last_seen(provider: SliceProvider, found: Slice) -> LastSeen:
    """Return what is known of a slice that was found."""
    return LastSeen(found.name, found.zone, found.state, provider.bills, id=found.id)


def interrupted(signal: KeyboardInterrupt, seen: Iterable[LastSeen]) -> TpukitError:
    """Return the error for a signal, with the slices that exist or were not looked for yet."""
    error = interruption(signal)
    left = [each for each in seen if each.state or not each.looked]
    if len(left) == 1:
        left[0].complete(error)
    elif left:
        error.exists = tuple(line for each in left if each.state for line in each.exists())
        if unknown := [each.name for each in left if not each.state]:
            error.why = f"nobody has looked yet for {', '.join(unknown)}"
        error.fix = Fix.command("tpukit", "delete", *[each.name for each in left])
    return error


@contextmanager
def naming_what_exists(seen: LastSeen) -> Iterator[None]:
    """Give every error that leaves here, signals too, what still exists and how to delete it."""
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


def passing(error: TpukitError) -> bool:
    """Return True if the API gave no answer of its own, so that another look tells more."""
    lost = isinstance(error, Doubtful) or error.reason.startswith(UNREADABLE)
    return lost or error.retry == "same-zone"


def _shown(found: Slice) -> str:
    """Return the state, and what a READY slice still lacks."""
    lacking = found.unaddressed if found.state == "READY" else ""
    return f"READY, {lacking}" if lacking else found.state
