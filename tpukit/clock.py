"""Time as an argument: a clock that can be faked, and deadlines measured on it."""

from __future__ import annotations

import time as _time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tpukit.errors import DeadlinePassed


class Clock(Protocol):
    """Time as the use-cases know it."""

    def time(self) -> float:
        """Return the seconds since the epoch."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""


class SystemClock(Clock):
    """The machine's own clock."""

    def time(self) -> float:
        return _time.time()

    def monotonic(self) -> float:
        return _time.monotonic()

    def sleep(self, seconds: float) -> None:
        _time.sleep(seconds)


@dataclass(frozen=True)
class Deadline:
    """A moment on a clock's monotonic scale by which a wait has to end."""

    clock: Clock
    at: float

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(clock, clock.monotonic() + seconds)

    @classmethod
    def never(cls, clock: Clock) -> Deadline:
        """Return a deadline too far off to matter (ten years), for what only the user ends."""
        return cls.after(clock, 10 * 365 * 86400.0)

    def remaining(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self.at - self.clock.monotonic())

    def passed(self) -> bool:
        """Return whether no time is left."""
        return self.remaining() == 0.0

    def within(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and one `seconds` from now."""
        return Deadline(self.clock, min(self.at, self.clock.monotonic() + seconds))

    def renew(self) -> None:
        """Take note of news: it puts off a `Patience`, and nothing else."""

    def check(self, what: str, **facts: object) -> None:
        """Raise `DeadlinePassed` with `what` once the deadline has passed."""
        if self.passed():
            raise DeadlinePassed(what, **facts)  # type: ignore[arg-type]


class Patience(Deadline):
    """A deadline that news puts off: so many seconds without any, or `limit`."""

    def __init__(self, limit: Deadline, seconds: float) -> None:
        super().__init__(limit.clock, limit.at)
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Count the seconds from now."""
        self._until = self.clock.monotonic() + self._seconds

    def remaining(self) -> float:
        """Return the seconds left, never below zero."""
        return min(super().remaining(), max(0.0, self._until - self.clock.monotonic()))


def polls(deadline: Deadline, first: float = 1.0, most: float = 5.0) -> Iterator[float]:
    """Yield once at once and then after growing pauses, `first` to `most` seconds, until the
    deadline.

    The mean overshoot stays below 3 s for a wait of any length, where gcloud's policy wastes 24 s
    on one of 3 minutes: `scripts/bench polling`.
    """
    pause = first
    while True:
        yield deadline.remaining()
        if deadline.passed():
            return
        deadline.clock.sleep(min(pause, deadline.remaining()))
        pause = min(pause * 1.5, most)
