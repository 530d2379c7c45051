"""Clocks that a test moves."""

from __future__ import annotations

from collections.abc import Callable

from tpukit.clock import SystemClock


class HandClock(SystemClock):
    """The system's clock, moved forward by hand."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    def advance(self, seconds: float) -> None:
        self.ahead += seconds


class AwayClock(SystemClock):
    """The clock of somebody whose time is another, by so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def time(self) -> float:
        return super().time() + self.seconds


class HastyClock(HandClock):
    """The system's clock, on which a pause takes no time and counts all the same."""

    on_sleep: Callable[[], object] = staticmethod(lambda: None)

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        self.on_sleep()


class SteppedClock(SystemClock):
    """A clock that moves by what is slept, and calls `between` in place of waiting."""

    def __init__(self, between: Callable[[int], object] = lambda count: None) -> None:
        self.pauses: list[float] = []
        self._between = between

    def monotonic(self) -> float:
        return sum(self.pauses)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._between(len(self.pauses))


def one_attempt() -> SteppedClock:
    """Return a clock on which every deadline has passed after the first pause."""
    clock = SteppedClock(lambda count: clock.pauses.append(3600.0))
    return clock
