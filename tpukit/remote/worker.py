"""One worker of a slice as provisioning and the smoke test see it: a number and a way in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpukit.remote.ssh import Connection


@dataclass(frozen=True)
class RemoteWorker:
    """A worker and how to open a new connection to it; the caller closes what it opened."""

    index: int
    connect: Callable[[], Connection]
