"""The time by the clock of a service: that of the machine that asks may be wrong."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime

from tpukit.clock import Clock

#: Seconds by which the two clocks may differ before it is told.
_TOLD = 120.0


class ServiceTime:
    """The time as the answers of a service tell it, in their `Date`: RFC 9110, section 6.6.1.

    `on_difference` is told once by how many seconds this machine's clock is ahead of the service's,
    behind it where negative, as the answer came: a machine that slept since is not wrong.
    """

    def __init__(self, clock: Clock, on_difference: Callable[[float], None]) -> None:
        self._clock = clock
        self._on_difference = on_difference
        self._told = False
        self._known = False
        self._ahead = 0.0  #: seconds by which its clock is ahead of our monotonic one
        self._difference = 0.0  #: seconds by which it is behind our own

    def saw(self, date: str) -> None:
        """Take note of the `Date` of an answer; one that cannot be read is none."""
        try:
            moment = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return
        self._ahead, self._known = moment - self._clock.monotonic(), True
        self._difference = self._clock.time() - moment

    def now(self) -> float:
        """Return the seconds since the epoch; this machine's, while no answer has come."""
        if not self._known:
            return self._clock.time()
        if abs(self._difference) > _TOLD and not self._told:
            self._told = True
            self._on_difference(self._difference)
        return self._ahead + self._clock.monotonic()
