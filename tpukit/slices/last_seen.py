"""What a slice was when it was last seen: for waits, and for errors that end them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tpukit.clock import Deadline, polls
from tpukit.cloud.provider import Doubtful, SliceProvider
from tpukit.errors import Fix, NameTaken, NotFound, SliceLost, TpukitError, interruption
from tpukit.models import Slice

OnState = Callable[[str], None]
Ask = Callable[[str, str], str]


@dataclass
class LastSeen:
    """What is known to exist; `state` is empty where nothing is."""

    name: str
    zone: str
    state: str = ""
    bills: bool = True

    def looks(
        self, provider: SliceProvider, deadline: Deadline, on_state: OnState
    ) -> Iterator[Slice | None]:
        """Yield the slice, or None where there is none, again and again until the deadline.

        `on_state` gets each new state. What is not found keeps its last state: whoever looks knows
        whether that means that it is gone. Raises whatever a read raises.
        """
        for _ in polls(deadline):
            found = self._look(provider)
            if found and found.state != self.state:
                self.state = found.state  # before it is shown: a signal may arrive meanwhile
                on_state(found.state)
            yield found

    def _look(self, provider: SliceProvider) -> Slice | None:
        try:
            return provider.get(self.zone, self.name)
        except NotFound:
            return None

    def exists(self) -> list[str]:
        """Return what an error says is left."""
        place = f"slice {self.name} in {self.zone}"
        costs = "bills" if self.bills else "stays"
        return [f"{place}, {self.state} when last seen; it {costs} until it is deleted"]

    def delete_command(self) -> Fix:
        """Return the command that deletes the slice."""
        return Fix.command("tpukit", "delete", self.name, "--zone", self.zone)


@contextmanager
def naming_what_exists(seen: LastSeen) -> Iterator[None]:
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


def asked(ask: Ask, found: Slice) -> str:
    """Return the operation's name, or "" where the slice has to be looked at again first."""
    try:
        return ask(found.zone, found.name)
    except Doubtful:
        return ""


def _complete(error: TpukitError, seen: LastSeen) -> None:
    if isinstance(error, (NameTaken, SliceLost)) or not seen.state or error.exists:
        return  # a lost slice's error says itself what is left of it
    error.exists = tuple(seen.exists())
    if error.fix is None:
        error.fix = seen.delete_command()
    elif error.fix != seen.delete_command():
        error.otherwise = seen.delete_command()
