"""The seam between the API half of the emulator and the machines that stand in for TPU VMs.

The service decides when a node's workers live and what they admit; a `WorkerHost` makes them live.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tpukit.emulator.faults.worker_faults import WorkerFaults


@dataclass(frozen=True)
class WorkerRecord:
    """What has to survive a restart of the emulator for one worker to stay the same machine."""

    index: int
    address: str
    port: int  #: where its SSH server listens
    hostname: str
    host_private_key: str  #: OpenSSH PEM
    host_public_key: str  #: "ssh-ed25519 AAAA…"


class WorkerOracle(Protocol):
    """What a worker asks the service at every connection.

    Everything may be called from any thread; `node` is a full resource name.
    """

    @property
    def worker_faults(self) -> WorkerFaults:
        """The faults that a user inflicts on workers."""
        ...

    def authorized_keys(self, node: str) -> Sequence[tuple[str, str]]:
        """Return (user, public key line) pairs from the node's and its project's metadata."""
        ...

    def admits(self, node: str, source_ip: str, port: int) -> bool:
        """Return whether the firewall rules let `source_ip` reach this TCP port of the workers."""
        ...

    def neighbours(self, node: str) -> Sequence[str]:
        """Return the addresses of all workers on the node's network, its own among them."""
        ...

    def project_number(self, node: str) -> str:
        """Return the number by which the APIs know the node's project."""
        ...


class WorkerHost(Protocol):
    """Makes the workers of a node; every method is called under the server's lock.

    `node` is a full resource name, except in `boot`, where it is the node's JSON object.
    """

    def allocate(self, node: str, count: int) -> list[WorkerRecord]:
        """Choose addresses and host keys for `count` workers; nothing listens yet."""
        ...

    def boot(self, node: dict[str, Any], workers: Sequence[WorkerRecord]) -> None:
        """Let the workers answer: the node became READY, or the emulator came back with it so."""
        ...

    def move(self, node: str, workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
        """Choose other addresses for a node's workers, which keep their names and host keys."""
        ...

    def guest_attributes(self, worker: WorkerRecord) -> Mapping[str, str]:
        """Return what a worker has published of itself, by `namespace/key`."""
        ...

    def halt(self, node: str) -> None:
        """End the workers' connections, listeners and processes; keep their files."""
        ...

    def refresh(self) -> None:
        """Apply the faults that came, and undo those that went."""
        ...

    def keep_only(self, workers: Collection[WorkerRecord]) -> None:
        """Remove the files of all workers but these, which are all that there are."""
        ...

    def discard(self, node: str) -> None:
        """Halt, then remove the workers' files: the node is deleted."""
        ...


#: `build_server` makes the host last, because it needs an oracle.
WorkerHostFactory = Callable[[WorkerOracle], WorkerHost]
