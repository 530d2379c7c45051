"""The emulator's own time: a user may move it forward, change its speed or stop it."""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable
from datetime import UTC, datetime

#: The clock stops here, a thousand years before the last date that Python can represent.
LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


class EmulatorClock:
    """Seconds since the epoch. The clock moves forward only, and not beyond `LATEST`.

    If the machine's time is set back, this clock goes on from its last value; otherwise every
    operation under way would wait as long. `shown` is the clock's last value in an earlier process.
    """

    def __init__(
        self, base: Callable[[], float] = _time.time, offset: float = 0.0, shown: float = 0.0
    ) -> None:
        self._base = base
        self._lock = threading.Lock()
        self._seen = base()  #: the machine's time at the last look
        self._since = self._seen
        self._then = max(self._since + offset, shown)  #: this clock's time at `_since`
        self._speed = 1.0

    @property
    def offset(self) -> float:
        """The seconds by which this clock is ahead of the machine's, or behind it if negative."""
        now = self._machine()
        return self._at(now) - now

    @property
    def speed(self) -> float:
        return self._speed

    @speed.setter
    def speed(self, factor: float) -> None:
        """Let `factor` seconds pass in each second; 0 stops the clock, except for `advance`."""
        now = self._machine()
        self._then, self._since = self._at(now), now
        self._speed = factor

    def reset(self) -> None:
        """Return to the machine's time and speed."""
        self._then = self._since = self._machine()
        self._speed = 1.0

    def time(self) -> float:
        return self._at(self._machine())

    def advance(self, seconds: float) -> None:
        """Move the clock `seconds` forward."""
        self._then += seconds

    def _machine(self) -> float:
        """Return the machine's time, and make up for any step back since the last look."""
        with self._lock:
            now = self._base()
            self._since += min(0.0, now - self._seen)
            self._seen = now
            return now

    def _at(self, now: float) -> float:
        return min(self._then + (now - self._since) * self._speed, LATEST)

    def real_seconds(self, seconds: float) -> float | None:
        """Return how long `seconds` of this clock take in real time; None if the clock stands."""
        return seconds / self._speed if self._speed else None


def timestamp(seconds: float) -> str:
    """Return seconds since the epoch as RFC 3339 text in the form that the APIs use."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def parse_timestamp(text: str) -> float:
    """Return an RFC 3339 text as seconds since the epoch; raise ValueError for other text."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"no time zone in {text!r}")
    return moment.timestamp()
