"""Clocks that callers pass in, so that tests can replace them, and deadlines on them."""

from __future__ import annotations

import time as _time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tpukit.errors import DeadlinePassed


class Clock(Protocol):
    """The time of a command."""

    def time(self) -> float:
        """Return the seconds since the epoch."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds."""


class SystemClock(Clock):
    """The clock of this machine."""

    def time(self) -> float:
        return _time.time()

    def monotonic(self) -> float:
        return _time.monotonic()

    def sleep(self, seconds: float) -> None:
        _time.sleep(seconds)


@dataclass(frozen=True)
class Deadline:
    """The time when a wait must end, in seconds of the clock's `monotonic`."""

    clock: Clock
    at: float

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(clock, clock.monotonic() + seconds)

    @classmethod
    def never(cls, clock: Clock) -> Deadline:
        """Return a deadline in ten years, for commands that only the user ends."""
        return cls.after(clock, 10 * 365 * 86400.0)

    def remaining(self) -> float:
        """Return the seconds left, at least zero."""
        return max(0.0, self.at - self.clock.monotonic())

    def passed(self) -> bool:
        """Return True if no time is left."""
        return self.remaining() == 0.0

    def within(self, seconds: float) -> Deadline:
        """Return this deadline, or the one `seconds` from now if that is earlier."""
        return Deadline(self.clock, min(self.at, self.clock.monotonic() + seconds))

    def renew(self) -> None:
        """Restart the limit on silence, which only a `Patience` has."""

    def check(self, what: str, **facts: object) -> None:
        """Raise `DeadlinePassed` with the message `what` if no time is left."""
        if self.passed():
            raise DeadlinePassed(what, **facts)  # type: ignore[arg-type]


class Patience(Deadline):
    """A deadline with a limit on silence: it passes `seconds` after the last `renew`."""

    def __init__(self, limit: Deadline, seconds: float) -> None:
        super().__init__(limit.clock, limit.at)
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Restart the limit on silence."""
        self._until = self.clock.monotonic() + self._seconds

    def remaining(self) -> float:
        """Return the seconds left, at least zero."""
        return min(super().remaining(), max(0.0, self._until - self.clock.monotonic()))


def polls(deadline: Deadline, first: float = 1.0, most: float = 5.0) -> Iterator[float]:
    """Yield the seconds left: at once, after pauses from `first` to `most` seconds, and at the end.

    On average a wait ends less than 3 s late; with gcloud's policy, a wait of 3 minutes ends 24 s
    late: `scripts/bench polling`.
    """
    pause = first
    while True:
        yield deadline.remaining()
        if deadline.passed():
            return
        deadline.clock.sleep(min(pause, deadline.remaining()))
        pause = min(pause * 1.5, most)
