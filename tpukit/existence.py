"""What exists: looking a slice up, and saying on every way out what is left and bills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches

from tpukit.errors import BadInput, NameTaken, NotFound, TpukitError, interruption
from tpukit.models import Slice
from tpukit.provider import SliceProvider
from tpukit.text import quote


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


def get_or_none(provider: SliceProvider, zone: str, name: str) -> Slice | None:
    """Return the slice, or None where the cloud answered that it is not found."""
    try:
        return provider.get(zone, name)
    except NotFound:
        return None


@dataclass
class Sighting:
    """What is known to exist while a wait goes on, for whoever has to say so when it ends early."""

    name: str
    zone: str
    state: str = ""
    bills: bool = True

    def exists(self) -> list[str]:
        place = f"slice {self.name} in {self.zone}"
        costs = "bills" if self.bills else "stays"
        return [f"{place}, {self.state} when last seen; it {costs} until it is deleted"]

    def delete_command(self) -> str:
        return quote(["tpukit", "delete", self.name, "--zone", self.zone])


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
