"""The workers of one or several slices, each with a way in that finds it again after a change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from tpukit import access
from tpukit.clock import Deadline
from tpukit.errors import HostKeyMismatch, NotFound, TpukitError, TransportFailed
from tpukit.means import Means
from tpukit.models import Slice
from tpukit.remote.fanout import fan_out
from tpukit.remote.ssh import Connection, Target
from tpukit.remote.worker import RemoteWorker

#: Connections that are made at the same time: more only wait for this machine's processors.
WINDOW = 32
#: Seconds after which a worker that does not answer is spoken of.
_PATIENCE_SECONDS = 10.0
#: Seconds after which a slice whose worker does not answer is looked at again, at the latest.
_LONGEST_ROUND_SECONDS = 40.0
#: Seconds for which one look at the slice serves all of its workers.
_FRESH_SECONDS = 5.0

OnWait = Callable[[str], None]


def workers(
    means: Means,
    slices: Sequence[Slice],
    selection: str,
    deadline: Deadline,
    patience: float,
    on_wait: OnWait = lambda line: None,
) -> list[RemoteWorker]:
    """Return the selected workers of each slice, with their pinned host keys.

    `patience` is in seconds, for each connection that is made later; `on_wait` hears of workers
    that let us wait.
    """
    door = threading.Semaphore(WINDOW)
    ways = [_Way(means, each, patience, on_wait, door) for each in slices]
    found: list[RemoteWorker] = []
    for outcome in fan_out(ways, lambda way: way.open(deadline)):
        if outcome.error:
            raise outcome.error
        found += outcome.value or []
    return access.select(found, selection)


class _Way:
    """The way into one slice."""

    def __init__(
        self,
        means: Means,
        found: Slice,
        patience: float,
        on_wait: OnWait,
        door: threading.Semaphore,
    ) -> None:
        self._means = means
        self._slice = found
        self._patience = patience
        self._on_wait = on_wait
        self._door = door
        self._targets: dict[int, Target] = {}
        self._fresh_until = 0.0
        self._lock = threading.Lock()

    def open(self, deadline: Deadline) -> list[RemoteWorker]:
        """Make sure of our key and read the workers' host keys."""
        access.check_reachable(self._slice)
        means = self._means
        access.install_key(means.provider, self._slice, means.user, means.key, deadline)
        self._targets = self._read(deadline.within(access.IDENTITY_SECONDS))
        name = self._slice.name
        return [
            RemoteWorker(index, self._connector(index), name, target)
            for index, target in self._targets.items()
        ]

    def _read(self, deadline: Deadline) -> dict[int, Target]:
        means = self._means
        found = access.targets(means.provider, self._slice, means.user, deadline, means.internal)
        return {target.worker: target for target in found}

    def _connector(self, index: int) -> Callable[[], Connection]:
        return lambda: self._connect(index, Deadline.after(self._means.clock, self._patience))

    def _connect(self, index: int, deadline: Deadline) -> Connection:
        """Connect; while nobody, or somebody else, answers, look where the worker is now."""
        target, round_seconds = self._targets[index], _PATIENCE_SECONDS
        door: AbstractContextManager[object] = self._door
        while True:
            try:
                with door:
                    return self._entry().connect(target, deadline.within(round_seconds))
            except (TransportFailed, HostKeyMismatch) as error:
                now = self._look_again(target, deadline)
                if now == target and (isinstance(error, HostKeyMismatch) or deadline.passed()):
                    raise
                if now == target and door is self._door:
                    left = f"trying for {deadline.remaining():.0f} s more"
                    self._on_wait(f"{error.what} ({error.reason or error.why}); {left}")
            target, round_seconds = now, min(2 * round_seconds, _LONGEST_ROUND_SECONDS)
            door = nullcontext()  # those that wait for a dead worker keep nobody out

    def _look_again(self, before: Target, deadline: Deadline) -> Target:
        """Return where the worker is now: a slice that was made anew has other addresses, keys."""
        with self._lock:
            if self._targets[before.worker] is not before:
                return self._targets[before.worker]
            if self._means.clock.monotonic() < self._fresh_until:
                return before
            found = self._found_again(deadline) or self._targets
            if before.worker not in found:
                raise TransportFailed(f"slice {self._slice.name} has no worker {before.worker} now")
            self._targets = {**self._targets, **found}
            return found[before.worker]

    def _found_again(self, deadline: Deadline) -> dict[int, Target] | None:
        """Read the slice and its host keys; None where the API cannot be asked either."""
        means = self._means
        self._fresh_until = means.clock.monotonic() + _FRESH_SECONDS
        try:
            self._slice = means.provider.get(self._slice.zone, self._slice.name)
        except NotFound:
            raise
        except TpukitError:
            return None
        access.check_reachable(self._slice)
        return self._read(deadline)

    def _entry(self) -> access.Access:
        means = self._means
        return access.Access(self._slice, means.connector, means.firewall, means.source_address)
