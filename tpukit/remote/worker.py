"""One worker of a slice as those who work on it see it: a number and a way in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpukit.remote.ssh import Connection
    from tpukit.remote.values import Target


@dataclass(frozen=True)
class RemoteWorker:
    """A worker and how to open a new connection to it; the caller closes what it opened.

    `slice` is the name of the slice that it belongs to, `target` where it answered when it was
    found, where that was told.
    """

    index: int
    connect: Callable[[], Connection]
    slice: str = ""
    target: Target | None = None

    @property
    def label(self) -> str:
        """The worker as messages name it: `demo worker 0`."""
        return f"{self.slice} worker {self.index}".strip()
