"""Reports the progress of a long action on this worker."""

from __future__ import annotations

import time
from typing import TextIO

from tpukit.agent.main import say

#: Seconds between two reports.
PAUSE = 0.25


class ProgressReport:
    """Counts finished bytes or files, and reports the number while it grows."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.done = 0
        self._stream, self._due = stream, time.monotonic() + PAUSE

    def advance(self, amount: int) -> None:
        """Add to the number; report it if the last report was `PAUSE` seconds ago."""
        self.done += amount
        if time.monotonic() >= self._due:
            say({"progress": self.done}, self._stream)
            self._due = time.monotonic() + PAUSE
