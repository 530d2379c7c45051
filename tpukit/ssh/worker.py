"""One worker, and actions on it that reconnect after a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tpukit.clock import Deadline
from tpukit.errors import Fix, TransportFailed
from tpukit.ssh.target import Completed, Target

if TYPE_CHECKING:
    from tpukit.accelerators import AcceleratorType
    from tpukit.ssh.client import Connection

#: The number of attempts without progress before a worker is given up, and the growth of the pause
#: after each.
_FRUITLESS, _PAUSE_SECONDS = 5, 0.5
#: The words of an error for a worker's disk, the line that shows more there, and a note on it.
_DISKS = (
    ("No space left on device", "df -h . && du -xhd 2 . | sort -h | tail", "shows what fills it"),
    ("Read-only file system", "sudo dmesg | tail -20", "shows why it is read-only"),
)

Value = TypeVar("Value")


@dataclass(frozen=True)
class RemoteWorker:
    """A worker, and the function that opens a new connection to it; the caller closes it.

    `slice` is the name of its slice, and `target` its last known address. `check_slice` raises
    `SliceLost` if the slice has been lost since. `workers` is the number of workers of its slice,
    and `slices` the number of slices in the same command. `coordinator` is the internal address of
    worker 0 of the first slice. `accelerator_type` is the slice's.
    """

    index: int
    connect: Callable[[], Connection]
    slice: str = ""
    target: Target | None = None
    check_slice: Callable[[], None] = lambda: None
    workers: int = 1
    accelerator_type: str = ""
    coordinator: str = ""
    slice_index: int = 0
    slices: int = 1
    runtime_version: str = ""  #: of its slice
    multislice: bool = False  #: True if these slices form one multislice

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables for commands on the worker: TPUKIT_WORKER and others.

        In a multislice, they include MEGASCALE_*, as Google sets them on the slices of a queued
        resource: JAX and libtpu read them first (jax/_src/clusters/cloud_tpu_cluster.py).
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
        """The values of `{worker}` and others in a command on the worker."""
        names = ("workers", "coordinator", "slice", "slice_index", "slices")
        return {"worker": str(self.index)} | {name: str(getattr(self, name)) for name in names}

    @property
    def accelerator(self) -> AcceleratorType | None:
        """The slice's type, or None if our table does not list it."""
        from tpukit.accelerators import AcceleratorType, is_listed  # 30 ms, and few commands ask

        name = self.accelerator_type
        return AcceleratorType.parse(name) if is_listed(name) else None

    @property
    def record(self) -> str:
        """The worker in the names of files in a folder that workers may share: `demo.0`."""
        return f"{self.slice}.{self.index}"

    @property
    def label(self) -> str:
        """The worker's name in messages: `demo worker 0`."""
        return f"{self.slice} worker {self.index}".strip()

    @property
    def name(self) -> str:
        """The worker's name in messages about one slice: `worker 0`; about several: `label`."""
        return self.label if self.slices > 1 else f"worker {self.index}"

    def disk_fix(self, reason: str) -> Fix | None:
        """Return a command that shows why the disk took nothing, or None for another reason."""
        for words, look, note in _DISKS:
            if words in reason:
                ssh = ("tpukit", "ssh", self.slice, "--worker", str(self.index), "--", look)
                return Fix.command(*ssh, note=note)
        return None

    def proved(self) -> Target:
        """Return the worker's target with its host keys; connect to learn unpublished ones."""
        if self.target and self.target.host_keys:
            return self.target
        with self.connect() as connection:
            return connection.target


def listed(workers: Iterable[RemoteWorker]) -> str:
    """Return the workers for a message: `demo worker 0,2-3`, and so on for each slice."""
    indexes: dict[str, list[int]] = {}
    for worker in workers:
        indexes.setdefault(worker.slice, []).append(worker.index)
    return ", ".join(f"{name} worker {_ranges(own)}".strip() for name, own in indexes.items())


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers in the form of `--worker`: `0,2-3`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, range_)) for range_ in ranges)


@dataclass(eq=False)
class RetryingConnection(AbstractContextManager["RetryingConnection"]):
    """A connection to one worker that opens on first use, and again after a loss.

    `on_loss` gets each loss that is followed by a retry. A new connection and a call of
    `progressed` renew the deadline.
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
        """Return the action's value; raise its error after five attempts without progress.

        Errors of `connect` are raised at once: it has its own retries.
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
        """Run a command that may safely run twice; raise the errors of `retry`."""
        return self.retry(
            lambda connection: connection.run(command, deadline=self.deadline, keep=keep)
        )

    def progressed(self) -> None:
        """Note that the current action has made progress, even if it fails later."""
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
