"""Workers over connections that outlive a command, found without asking the cloud again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from tpukit.clock import Clock
from tpukit.errors import TransportFailed
from tpukit.remote.keeper_home import KeeperHome
from tpukit.remote.kept import KeptRun, Request, known_workers
from tpukit.remote.runs import Hear, Order
from tpukit.remote.ssh import Connection
from tpukit.remote.worker import RemoteWorker

Find = Callable[[], list[RemoteWorker]]


class KeptFleet:
    """All workers of a request; `find` asks the cloud for them, where that is needed."""

    def __init__(self, home: KeeperHome, request: Request, find: Find) -> None:
        self._home = home
        self._request = request
        self._find = find
        self._lock = threading.Lock()
        known = known_workers(home, request)
        self._found = [] if known else find()
        self.workers: Sequence[RemoteWorker] = self._found
        if known:
            self.workers = [
                RemoteWorker(
                    target.worker, partial(self._connect, name, target.worker), name, target
                )
                for name, target in known
            ]

    def run(self, order: Order, clock: Clock, hear: Hear) -> KeptRun:
        """Return one command for any of these workers."""
        return KeptRun(order, clock, hear, self._home, self._request, self._found)

    def _connect(self, name: str, index: int) -> Connection:
        """Reach a worker that the keeper does not: what it knew may be out of date."""
        with self._lock:
            self._found = self._found or self._find()
        for each in self._found:
            if (each.slice, each.index) == (name, index):
                return each.connect()
        raise TransportFailed(f"slice {name} has no worker {index} now")
