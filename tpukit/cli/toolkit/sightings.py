"""What a command knows of the slices that it works on, for the report of Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tpukit.errors import TpukitError

if TYPE_CHECKING:
    from tpukit.slices.last_seen import LastSeen


class Sightings:
    """The last known state of each slice, by name."""

    def __init__(self) -> None:
        self._known: dict[str, Callable[[], LastSeen]] = {}

    def add(self, name: str, sighting: Callable[[], LastSeen]) -> None:
        """Keep the last sighting of a slice, which is called only if Ctrl-C reports it."""
        self._known[name] = sighting

    def remove(self, name: str) -> None:
        """Report nothing about a slice: there is none."""
        self._known.pop(name)

    def interrupted(self, signal: KeyboardInterrupt) -> TpukitError:
        """Return the error for a signal, with the slices that the command knows to exist."""
        from tpukit.slices.last_seen import interrupted

        return interrupted(signal, [sighting() for sighting in self._known.values()])
