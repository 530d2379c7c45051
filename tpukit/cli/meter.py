"""How far a transfer is: bytes, rate and time left, on stderr."""

from __future__ import annotations

import threading

from tpukit.clock import Clock
from tpukit.console import Console

#: Seconds between two lines: on a terminal one is painted over the other, elsewhere each stays.
_REPAINT, _REPEAT = 0.1, 10.0
#: Seconds after which nothing has been shown yet, and nothing need be.
_SHORT = 0.5


class Meter:
    """Counts what a transfer moves, from several threads, and shows it now and then."""

    def __init__(self, console: Console, clock: Clock, verb: str) -> None:
        self._console = console
        self._clock = clock
        self._verb = verb
        self._expected = self._moved = 0
        self._started = self._shown = clock.monotonic()
        self._lock = threading.Lock()

    @property
    def moved(self) -> int:
        return self._moved

    def expect(self, size: int) -> None:
        with self._lock:
            self._expected += size

    def advance(self, size: int) -> None:
        with self._lock:
            self._moved += size
            now = self._clock.monotonic()
            pause = _REPAINT if self._console.repaints else _REPEAT
            if now - self._started > _SHORT and now - self._shown >= pause:
                self._shown = now
                self._console.progress(self.line(now - self._started))

    def finish(self) -> None:
        """Clear the line, or tell the whole where something was moved."""
        self._console.progress("")
        if self._moved:
            seconds = max(self._clock.monotonic() - self._started, 0.001)
            rate = _amount(self._moved / seconds)
            self._console.say(f"{self._verb} {_amount(self._moved)} in {seconds:.1f} s ({rate}/s)")

    def line(self, seconds: float) -> str:
        """Return how far it is after so many seconds: `12.0 of 200.0 MB, 11.8 MB/s, 16 s left`."""
        rate = self._moved / max(seconds, 0.001)
        left = max(0, self._expected - self._moved) / max(rate, 1.0)
        expected = max(self._expected, self._moved)
        return (
            f"{self._verb} {_amount(self._moved)} of {_amount(expected)}, "
            f"{_amount(rate)}/s, {_time(left)} left"
        )


def _amount(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _time(seconds: float) -> str:
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
