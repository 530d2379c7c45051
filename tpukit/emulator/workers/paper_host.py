"""Workers without machines, for tests of API calls."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count as numbers
from typing import Any

from tpukit.emulator.workers.worker_host import WorkerOracle, WorkerRecord


class PaperHost:
    """A host of workers with addresses and host keys only; `booted` holds the booted nodes."""

    def __init__(self, oracle: WorkerOracle, port: int = 22) -> None:
        self.oracle = oracle
        self.booted: set[str] = set()
        self._used: set[str] = set()
        self._port = port
        self._numbers = numbers(1)

    def allocate(self, node: str, count: int, hostname: str = "") -> list[WorkerRecord]:
        workers = [self._new(index) for index in range(count)]
        return [replace(worker, hostname=hostname or worker.hostname) for worker in workers]

    def boot(
        self, node: dict[str, Any], workers: Sequence[WorkerRecord], only: int | None = None
    ) -> None:
        self.booted.add(node["name"])
        self._used.update(worker.address for worker in workers)

    def move(self, node: str, workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
        return [self._new(worker.index) for worker in workers]

    def guest_attributes(self, worker: WorkerRecord) -> Mapping[str, str]:
        return {}

    def halt(self, node: str) -> None:
        self.booted.discard(node)

    def discard(self, node: str) -> None:
        self.booted.discard(node)

    def keep_only(self, workers: Collection[WorkerRecord]) -> None:
        """Do nothing: these workers have no files."""

    def refresh(self) -> None:
        """Do nothing: faults cannot affect these workers."""

    def _new(self, index: int) -> WorkerRecord:
        records = (self._record(index, number) for number in self._numbers)
        return next(record for record in records if record.address not in self._used)

    def _record(self, index: int, number: int) -> WorkerRecord:
        """Return a worker with an address of the default network and a public host key only."""
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
