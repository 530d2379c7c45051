"""The emulator's own time: a user may set it, step it and let it run faster or not at all."""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable
from datetime import UTC, datetime

#: Where the clock stands still: 8999 ends a thousand years before Python's dates do.
LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


class EmulatorClock:
    """Seconds since the epoch that can be moved forward, never back, and not beyond `LATEST`.

    Where the machine's own time is set back, this one goes on from where it was: else all that is
    under way would stand still as long. `shown` is what it showed last, before this process.
    """

    def __init__(
        self, base: Callable[[], float] = _time.time, offset: float = 0.0, shown: float = 0.0
    ) -> None:
        self._base = base
        self._lock = threading.Lock()
        self._seen = base()  #: the machine's time at the last look
        self._since = self._seen
        self._then = max(self._since + offset, shown)  #: what this clock showed at `_since`
        self._speed = 1.0

    @property
    def offset(self) -> float:
        """How many seconds the clock is ahead of the machine's; behind it where negative."""
        now = self._machine()
        return self._at(now) - now

    @property
    def speed(self) -> float:
        return self._speed

    @speed.setter
    def speed(self, factor: float) -> None:
        """Let `factor` seconds pass in one; 0 stops the clock, and `advance` still steps it."""
        now = self._machine()
        self._then, self._since = self._at(now), now
        self._speed = factor

    def reset(self) -> None:
        """Show the machine's time again, at its pace: what was known of the time is forgotten."""
        self._then = self._since = self._machine()
        self._speed = 1.0

    def time(self) -> float:
        return self._at(self._machine())

    def advance(self, seconds: float) -> None:
        """Move the clock `seconds` forward."""
        self._then += seconds

    def _machine(self) -> float:
        """Return the machine's time, and let go by what it was set back by."""
        with self._lock:
            now = self._base()
            self._since += min(0.0, now - self._seen)
            self._seen = now
            return now

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
