"""Signs of life: how far this worker is with something that takes long."""

from __future__ import annotations

import time
from typing import TextIO

from tpukit.agent.main import say

#: Seconds between two of them.
PAUSE = 0.25


class ProgressReport:
    """Counts what has been done, in bytes or files, and says it while it grows."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.done = 0
        self._stream, self._due = stream, time.monotonic() + PAUSE

    def advance(self, amount: int) -> None:
        """Count what has been done; say it if the last time was a while ago."""
        self.done += amount
        if time.monotonic() >= self._due:
            say({"progress": self.done}, self._stream)
            self._due = time.monotonic() + PAUSE
