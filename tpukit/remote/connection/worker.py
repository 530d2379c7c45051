"""One worker, and what is done on it over as many connections as it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tpukit.clock import Deadline
from tpukit.errors import TransportFailed
from tpukit.remote.connection.target import Completed, Target

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

#: Attempts one after the other that bring nothing before a worker is given up, and by how much
#: the pause grows after each of them.
_FRUITLESS, _PAUSE_SECONDS = 5, 0.5

Value = TypeVar("Value")


@dataclass(frozen=True)
class RemoteWorker:
    """A worker and how to open a new connection to it; the caller closes what it opened.

    `slice` is the name of the slice that it belongs to, `target` where it answered when it was
    found, where that is known. `check_slice` raises `SliceLost` where the slice was lost since.
    `workers` counts those of its slice, `slices` those that are worked on together; `coordinator`
    is the internal address of the first one's worker 0.
    """

    index: int
    connect: Callable[[], Connection]
    slice: str = ""
    target: Target | None = None
    check_slice: Callable[[], None] = lambda: None
    workers: int = 1
    coordinator: str = ""
    slice_index: int = 0
    slices: int = 1
    multislice: bool = False  #: whether these slices are one multislice

    @property
    def variables(self) -> dict[str, str]:
        """The variables that a command on it has: TPUKIT_WORKER and so on.

        In a multislice, MEGASCALE_* as Google sets them on the slices of a queued resource: JAX and
        libtpu take them from the environment first (jax/_src/clusters/cloud_tpu_cluster.py).
        """
        ours = {f"TPUKIT_{name.upper()}": value for name, value in self.words.items()}
        if not self.multislice:
            return ours
        return {
            **ours,
            "MEGASCALE_COORDINATOR_ADDRESS": self.coordinator,
            "MEGASCALE_NUM_SLICES": str(self.slices),
            "MEGASCALE_SLICE_ID": str(self.slice_index),
        }

    @property
    def words(self) -> dict[str, str]:
        """What `{worker}` and others stand for in a command on it."""
        names = ("workers", "coordinator", "slice", "slice_index", "slices")
        return {"worker": str(self.index)} | {name: str(getattr(self, name)) for name in names}

    @property
    def record(self) -> str:
        """The worker in names of files that several workers may share: `demo.0`."""
        return f"{self.slice}.{self.index}"

    @property
    def label(self) -> str:
        """The worker as messages name it: `demo worker 0`."""
        return f"{self.slice} worker {self.index}".strip()

    @property
    def name(self) -> str:
        """The worker as messages about one slice name it: `worker 0`; of several as `label`."""
        return self.label if self.slices > 1 else f"worker {self.index}"

    def proved(self) -> Target:
        """Return where it answers, and its host keys: who publishes none has to show them."""
        if self.target and self.target.host_keys:
            return self.target
        with self.connect() as connection:
            return connection.target


def listed(workers: Iterable[RemoteWorker]) -> str:
    """Return workers as one message names them: `demo worker 0,2-3`, and so on for each slice."""
    indexes: dict[str, list[int]] = {}
    for worker in workers:
        indexes.setdefault(worker.slice, []).append(worker.index)
    return ", ".join(f"{name} worker {_ranges(each)}".strip() for name, each in indexes.items())


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers as `--worker` takes them: `0,2-3`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, range_)) for range_ in ranges)


@dataclass(eq=False)
class RetryingConnection(AbstractContextManager["RetryingConnection"]):
    """A connection to one worker, opened when it is used, and again after a loss.

    `on_loss` learns of each loss after which the same is tried again. A new connection and what
    `progressed` says are news to the deadline.
    """

    connect: Callable[[], Connection]
    deadline: Deadline
    on_loss: Callable[[TransportFailed], None] = lambda error: None
    _connection: Connection | None = field(default=None, init=False)

    @property
    def connection(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.alive:
            self.close()
            connection = self._connection = self.connect()
            self.deadline.renew()
        return connection

    def retry(self, action: Callable[[Connection], Value]) -> Value:
        """Return the action's value; raise what the fifth attempt in a row without progress raised.

        A connection that cannot be made is not tried for again: `connect` has tried long enough.
        """
        fruitless = 0
        while True:
            self._fruitful = False
            connection = self.connection
            try:
                return action(connection)
            except TransportFailed as error:
                self.close()
                fruitless = 0 if self._fruitful else fruitless + 1
                if fruitless == _FRUITLESS:
                    raise
                self.on_loss(error)
                self.deadline.clock.sleep(fruitless * _PAUSE_SECONDS)

    def run(self, command: str, keep: int = 1 << 20) -> Completed:
        """Run a command that does no harm when it runs twice; raise as `retry` does."""
        return self.retry(lambda each: each.run(command, deadline=self.deadline, keep=keep))

    def progressed(self) -> None:
        """Note that the action at hand brought something, whatever becomes of it."""
        self._fruitful = True
        self.deadline.renew()

    def close(self) -> None:
        """Close the connection; the next command opens another one."""
        # Another thread may close it, or open another one, meanwhile.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __exit__(self, *raised: object) -> None:
        self.close()
