"""The interface between the emulator's APIs and its workers.

The service decides when a node's workers run and whom they admit; a `WorkerHost` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tpukit.accelerators import AcceleratorType
from tpukit.emulator.faults.worker_faults import WorkerFaults

#: The layout of one worker's chips: pytorch/xla:torch_xla/_internal/tpu.py for 4 chips, tpu-env of
#: a ct6e-standard-1t for 1.
_CHIP_BOUNDS = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}


@dataclass(frozen=True)
class WorkerRecord:
    """The lasting identity of a worker, which survives a restart of the emulator."""

    index: int
    address: str
    port: int  #: of its SSH server
    hostname: str
    host_private_key: str  #: OpenSSH PEM
    host_public_key: str  #: "ssh-ed25519 AAAA…"
    folder: str = ""  #: of its files, if the hostname is not unique

    @property
    def folder_name(self) -> str:
        return self.folder or self.hostname


def accelerator_of(name: str) -> AcceleratorType:
    """Return an accelerator type, also of the hosts that only Compute Engine offers.

    Their names are those of their metadata: "v7x-16" was seen on a slice of 8 chips, and v5p counts
    cores (../shared/reference/compute-engine.md, sections 1 and 2.4). Raises `BadInput` for others.
    """
    if name == "v5p-2":
        host = AcceleratorType.parse("v5p-8")
        one = replace(host, name=name, size=2, chips=1, cores=2, chips_per_worker=1)
        return replace(one, topology="1x1x1")
    if not name.startswith("v7x-"):
        return AcceleratorType.parse(name)
    host = AcceleratorType.parse(name.replace("v7x", "v5p"))
    facts = replace(host.facts, name="tpu7x", api_type="TPU7X", devices_per_chip=2)
    return replace(host, name=name, facts=facts)


def bounds_of(accelerator: AcceleratorType) -> tuple[str, str]:
    """Return the numbers of one worker's chips, and of workers, along each axis.

    The second is the topology divided by one worker's chips.
    """
    chips = _CHIP_BOUNDS[accelerator.chips_per_worker]
    padded = [*map(int, accelerator.topology.split("x")), 1, 1][:3]
    workers = [-(-axis // own) for axis, own in zip(padded, chips, strict=True)]
    return _joined(chips), _joined(workers)


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers)


class WorkerOracle(Protocol):
    """The questions that workers ask the service at every connection.

    All members are safe to use from any thread. `node` is a full resource name.
    """

    @property
    def worker_faults(self) -> WorkerFaults:
        """The faults of workers."""
        ...

    def authorized_keys(self, node: str) -> Sequence[tuple[str, str]]:
        """Return pairs (user, public key line) from the metadata of the node and its project."""
        ...

    def admits(self, node: str, source_ip: str, port: int) -> bool:
        """Return True if the firewall rules let `source_ip` reach this TCP port of the workers."""
        ...

    def neighbours(self, node: str) -> Sequence[str]:
        """Return the addresses of all workers on the node's network, including its own."""
        ...

    def metadata(self, node: str) -> Mapping[str, str] | None:
        """Return the present metadata of an instance, or None if `node` is a Cloud TPU node."""
        ...

    def project_number(self, node: str) -> str:
        """Return the number of the node's project."""
        ...


class WorkerHost(Protocol):
    """The workers of all nodes; the caller of every method holds the server's lock.

    `node` is a full resource name, except in `boot`: there it is the node's JSON object.
    """

    def allocate(self, node: str, count: int, hostname: str = "") -> list[WorkerRecord]:
        """Choose addresses and host keys for `count` workers, without starting them.

        `hostname` is that of a single worker; by default the names are like Cloud TPU's.
        """
        ...

    def boot(
        self, node: dict[str, Any], workers: Sequence[WorkerRecord], only: int | None = None
    ) -> None:
        """Start the workers of a node that is READY, unless they run.

        With `only`, the node is the machine of this worker alone, and the others are its peers.
        Raises `OSError` if another program took an address while the emulator was not running.
        """
        ...

    def move(self, node: str, workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
        """Choose other addresses for a node's workers, which keep their names and host keys."""
        ...

    def guest_attributes(self, worker: WorkerRecord) -> Mapping[str, str]:
        """Return a worker's published values by `namespace/key`."""
        ...

    def halt(self, node: str) -> None:
        """End the workers' connections, listeners and processes; keep their files."""
        ...

    def refresh(self) -> None:
        """Apply new faults, and undo those that ended."""
        ...

    def keep_only(self, workers: Collection[WorkerRecord]) -> None:
        """Remove the files of all workers except these."""
        ...

    def discard(self, node: str) -> None:
        """Halt the workers of a deleted node, and remove their files."""
        ...


#: The host needs an oracle, so the service makes it from this function.
WorkerHostFactory = Callable[[WorkerOracle], WorkerHost]
