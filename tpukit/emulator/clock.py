"""The emulator's own time: the machine's, plus what its user added to it."""

from __future__ import annotations

import time as _time
from collections.abc import Callable
from datetime import UTC, datetime


class EmulatorClock:
    """Seconds since the epoch that can be moved forward, never back."""

    def __init__(self, base: Callable[[], float] = _time.time, offset: float = 0.0) -> None:
        self._base = base
        self.offset = offset

    def time(self) -> float:
        return self._base() + self.offset

    def advance(self, seconds: float) -> None:
        """Move the clock `seconds` forward."""
        self.offset += seconds


def timestamp(seconds: float) -> str:
    """Return seconds since the epoch as the RFC 3339 text that the APIs answer."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"
