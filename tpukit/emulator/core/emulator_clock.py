"""The emulator's own time: a user may set it, step it and let it run faster or not at all."""

from __future__ import annotations

import time as _time
from collections.abc import Callable
from datetime import UTC, datetime

#: Where the clock stands still: 8999 ends a thousand years before Python's dates do.
LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


class EmulatorClock:
    """Seconds since the epoch that can be moved forward, never back, and not beyond `LATEST`."""

    def __init__(self, base: Callable[[], float] = _time.time, offset: float = 0.0) -> None:
        self._base = base
        self._since = base()
        self._then = self._since + offset  #: what this clock showed at `_since`
        self._speed = 1.0

    @property
    def offset(self) -> float:
        """How many seconds the clock is ahead of the machine's; behind it where negative."""
        now = self._base()
        return self._at(now) - now

    @property
    def speed(self) -> float:
        return self._speed

    @speed.setter
    def speed(self, factor: float) -> None:
        """Let `factor` seconds pass in one; 0 stops the clock, and `advance` still steps it."""
        now = self._base()
        self._then, self._since = self._at(now), now
        self._speed = factor

    def reset(self) -> None:
        """Show the machine's time again, at its pace: what was known of the time is forgotten."""
        self._then = self._since = self._base()
        self._speed = 1.0

    def time(self) -> float:
        return self._at(self._base())

    def advance(self, seconds: float) -> None:
        """Move the clock `seconds` forward."""
        self._then = min(self._then + seconds, LATEST)

    def _at(self, now: float) -> float:
        return min(self._then + (now - self._since) * self._speed, LATEST)

    def real_seconds(self, seconds: float) -> float | None:
        """Return how long `seconds` of this clock take on the machine's; None for ever."""
        return seconds / self._speed if self._speed else None


def timestamp(seconds: float) -> str:
    """Return seconds since the epoch as the RFC 3339 text that the APIs answer."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def parse_timestamp(text: str) -> float:
    """Return an RFC 3339 text as seconds since the epoch; raise ValueError for another text."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"no time zone in {text!r}")
    return moment.timestamp()
