"""The lines of a job's log, which arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tpukit.text import sanitize

_TAIL_LINES = 50
_LONGEST_LINE = 64 << 10

OnLine = Callable[[str], None]


class JobLog:
    """Hands on each line once, sanitized; keeps the last ones and the offset behind them."""

    def __init__(self, on_line: OnLine | None) -> None:
        self.offset = 0
        self._on_line = on_line
        self._partial = b""
        self._last: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._last)

    def feed(self, data: bytes) -> None:
        self.offset += len(data)
        *whole, self._partial = (self._partial + data).split(b"\n")
        for line in whole:
            self._emit(line)
        if len(self._partial) > _LONGEST_LINE:
            self.finish()

    def finish(self) -> None:
        """Count what has no line end yet as a line."""
        if self._partial:
            self._emit(self._partial)
            self._partial = b""

    def _emit(self, line: bytes) -> None:
        # A progress bar is one line with many carriage returns: each becomes a line of its own.
        for part in sanitize(line.rstrip(b"\r")).split("\n"):
            self._last.append(part)
            if self._on_line is not None:
                self._on_line(part)
