"""The emulated TPU VMs of this machine: `WorkerHost` with real SSH servers.

All servers share one loop in one thread; a worker at rest costs its listeners.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tpukit.emulator.addresses import AddressBook, free_port, listening
from tpukit.emulator.engine import EmulatedWorker, Engine
from tpukit.emulator.facts import SliceFacts
from tpukit.emulator.metadata_server import MetadataServer
from tpukit.emulator.ssh_server import SshServer
from tpukit.emulator.workers import WorkerOracle, WorkerRecord

_STOP_SECONDS = 10.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class _Vm:
    """One worker that answers."""

    worker: EmulatedWorker
    metadata: MetadataServer
    ssh: SshServer

    async def stop(self) -> None:
        self.metadata.stop()
        await self.ssh.stop()


class LocalWorkerHost:
    """Runs workers on this machine; `identity` marks this emulator's processes among all others.

    `directory` keeps the workers' files, each in a folder with the worker's own hostname.
    """

    def __init__(
        self,
        directory: Path,
        identity: str,
        oracle: WorkerOracle,
        engine: Engine,
        randomness: random.Random,
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._oracle = oracle
        self._engine = engine
        self._randomness = randomness
        self._addresses = AddressBook(randomness)
        self._vms: dict[str, list[_Vm]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="workers", daemon=True)
        self._thread.start()

    def allocate(self, node: str, count: int) -> list[WorkerRecord]:
        """Choose addresses, names and host keys for a node's workers; nothing listens yet."""
        slice_id = f"{self._randomness.getrandbits(32):08x}"
        return [
            _new_record(index, address, f"t1v-n-{slice_id}-w-{index}")
            for index, address in enumerate(self._addresses.take(node, count))
        ]

    def boot(self, node: dict[str, Any], workers: Sequence[WorkerRecord]) -> None:
        """Let the workers of a READY node answer; a node that runs already is left as it is.

        Raises `OSError` where an address was taken while the emulator was not running.
        """
        name = node["name"]
        if name in self._vms:
            return
        facts = SliceFacts.of(node, workers)
        self._vms[name] = self._call(self._start(facts))

    def halt(self, node: str) -> None:
        """End the workers' connections, listeners and processes; keep their files."""
        vms = self._vms.pop(node, [])
        self._call(self._stop(vms))
        if vms:
            self._engine.end(self._marker(node))

    def discard(self, node: str) -> None:
        """Halt, remove the workers' files and free their addresses."""
        self.halt(node)
        for folder in self._engine.folders(self._directory, node):
            self._engine.remove(folder)
        self._addresses.release(node)

    def close(self) -> None:
        """Halt every node; what is on disk stays for the next start."""
        vms = [vm for group in self._vms.values() for vm in group]
        self._vms.clear()
        self._call(self._stop(vms))
        self._engine.end(f"{self._identity}/")
        self._addresses.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)

    def _marker(self, node: str) -> str:
        return f"{self._identity}/{node}/"

    async def _start(self, facts: SliceFacts) -> list[_Vm]:
        started: list[_Vm] = []
        try:
            for record in facts.workers:
                started.append(await self._start_one(facts, record))
        except OSError:
            await self._stop(started)
            raise
        return started

    async def _start_one(self, facts: SliceFacts, record: WorkerRecord) -> _Vm:
        folder = self._directory / record.hostname
        worker = EmulatedWorker(record, facts, folder, f"{self._marker(facts.node)}{record.index}")
        self._addresses.keep(facts.node, record.address)
        self._engine.prepare(worker)
        listener = listening(record.address, record.port)
        metadata = MetadataServer(worker)
        await metadata.start(listening(record.address, 0))
        ssh = SshServer(worker, self._engine, self._oracle, metadata.address)
        ssh.start(listener)
        return _Vm(worker, metadata, ssh)

    async def _stop(self, vms: Sequence[_Vm]) -> None:
        await asyncio.gather(*(vm.stop() for vm in vms))

    def _call(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)


def _new_record(index: int, address: str, hostname: str) -> WorkerRecord:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return WorkerRecord(
        index=index,
        address=address,
        port=free_port(address),
        hostname=hostname,
        host_private_key=private.decode(),
        host_public_key=public.decode(),
    )
