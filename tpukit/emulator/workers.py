"""The seam between the API half of the emulator and the machines that stand in for TPU VMs.

The service decides when a node's workers live and what they admit; a `WorkerHost` makes them live.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count as numbers
from typing import Any, Protocol

from tpukit.emulator.worker_faults import WorkerFaults


@dataclass(frozen=True)
class WorkerRecord:
    """What has to survive a restart of the emulator for one worker to stay the same machine."""

    index: int
    address: str
    port: int  #: where its SSH server listens
    hostname: str
    host_private_key: str  #: OpenSSH PEM
    host_public_key: str  #: "ssh-ed25519 AAAA…"

    def document(self) -> dict[str, Any]:
        """Return the record as the JSON object that the state keeps."""
        return asdict(self)

    @classmethod
    def parse(cls, document: dict[str, Any]) -> WorkerRecord:
        """Return the record that `document` made."""
        return cls(**document)


class WorkerOracle(Protocol):
    """What a worker asks the service each time somebody knocks.

    Everything may be asked from any thread; `node` is a full resource name.
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

    def halt(self, node: str) -> None:
        """End the workers' connections, listeners and processes; keep their files."""
        ...

    def refresh(self) -> None:
        """Let the workers feel the faults that came, and recover from those that went."""
        ...

    def discard(self, node: str) -> None:
        """Halt, then remove the workers' files: the node is deleted."""
        ...


#: `build_server` makes the host last, because it needs somebody to ask.
WorkerHostFactory = Callable[[WorkerOracle], WorkerHost]


class PaperHost:
    """Workers on paper: addresses and host keys, and no machine behind them.

    For an emulator that serves the API alone. `booted` has the nodes whose workers would answer.
    """

    def __init__(self, oracle: WorkerOracle, port: int = 22) -> None:
        self.oracle = oracle
        self.booted: set[str] = set()
        self._port = port
        self._numbers = numbers(1)

    def allocate(self, node: str, count: int) -> list[WorkerRecord]:
        return [self._record(index, next(self._numbers)) for index in range(count)]

    def boot(self, node: dict[str, Any], workers: Sequence[WorkerRecord]) -> None:
        self.booted.add(node["name"])

    def halt(self, node: str) -> None:
        self.booted.discard(node)

    def discard(self, node: str) -> None:
        self.booted.discard(node)

    def refresh(self) -> None:
        """Workers on paper feel nothing."""

    def _record(self, index: int, number: int) -> WorkerRecord:
        """Return a worker with an address of the default network's range and a key nobody holds."""
        kind = b"ssh-ed25519"
        fields = (kind, number.to_bytes(32, "big"))
        body = b"".join(len(text).to_bytes(4, "big") + text for text in fields)
        return WorkerRecord(
            index=index,
            address=f"10.128.{number // 250}.{number % 250 + 1}",
            port=self._port,
            hostname=f"t1v-n-{number:08x}-w-{index}",
            host_private_key="",
            host_public_key=f"{kind.decode()} {b64encode(body).decode()}",
        )
