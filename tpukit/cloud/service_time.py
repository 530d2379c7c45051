"""The time by a service's clock, because this machine's clock may be wrong."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime

from tpukit.clock import Clock

#: A larger difference of the clocks, in seconds, is reported.
_REPORTED = 120.0


class ServiceTime:
    """The time from the `Date` headers of a service's answers: RFC 9110, section 6.6.1.

    `on_difference` gets once the seconds by which this machine's clock was ahead of the service's
    (negative: behind it) when the last answer came.
    """

    def __init__(self, clock: Clock, on_difference: Callable[[float], None]) -> None:
        self._clock = clock
        self._on_difference = on_difference
        self._reported = False
        self._known = False
        self._ahead = 0.0  #: seconds: the service's clock minus our monotonic clock
        self._difference = 0.0  #: seconds: our clock minus the service's, at the last answer

    def saw(self, date: str) -> None:
        """Take the time from the `Date` header of an answer; ignore an unreadable one."""
        try:
            moment = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return
        self._ahead, self._known = moment - self._clock.monotonic(), True
        self._difference = self._clock.time() - moment

    def now(self) -> float:
        """Return the seconds since the epoch; before the first answer, by this machine's clock."""
        if not self._known:
            return self._clock.time()
        if abs(self._difference) > _REPORTED and not self._reported:
            self._reported = True
            self._on_difference(self._difference)
        return self._ahead + self._clock.monotonic()
