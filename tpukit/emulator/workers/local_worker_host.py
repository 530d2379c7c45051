"""The emulated TPU VMs of this machine: `WorkerHost` with real SSH servers.

All servers share one loop in one thread; an idle worker needs only its listening sockets.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tpukit.emulator.workers.addresses import AddressBook, free_port, listening
from tpukit.emulator.workers.engines.engine import (
    BootingEngine,
    EmulatedWorker,
    Engine,
    WorkerSockets,
)
from tpukit.emulator.workers.guest_attributes import read_attributes
from tpukit.emulator.workers.metadata_server import start_metadata_server
from tpukit.emulator.workers.slice_facts import SliceFacts
from tpukit.emulator.workers.sshd.ssh_server import SshServer
from tpukit.emulator.workers.startup_script import KEY, run_startup_script
from tpukit.emulator.workers.worker_folders import all_folders, folders, remove, remove_shares
from tpukit.emulator.workers.worker_host import WorkerOracle, WorkerRecord
from tpukit.errors import TpukitError

_STOP_SECONDS = 10.0
#: Seconds until a worker with its own system boots again after it has ended.
_REBOOT_SECONDS = 1.0

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class _Vm:
    """One worker that accepts connections; the first login creates everything else."""

    def __init__(
        self,
        worker: EmulatedWorker,
        engine: Engine,
        oracle: WorkerOracle,
        token: Callable[[], str],
    ) -> None:
        self.ssh = SshServer(worker, engine, oracle, self._start_worker)
        self._token = token
        self._oracle = oracle
        self._worker = worker
        self._engine = engine
        self._servers: list[asyncio.AbstractServer] = []
        self._changing = asyncio.Lock()
        self._stopped = False
        self._startup: asyncio.Task[None] | None = None

    def boot(self) -> None:
        """Boot the worker's system, or run the start-up script of its metadata."""
        if isinstance(self._engine, BootingEngine):  # its system runs the script itself
            self._startup = asyncio.create_task(self._keep_booted())
        elif script := self._worker.facts.metadata.get(KEY):
            self._startup = asyncio.create_task(self._run_startup_script(script))

    async def stop(self) -> None:
        async with self._changing:
            self._stopped = True
        if self._startup:
            self._startup.cancel()
        for server in self._servers:
            server.close()
        await self.ssh.stop()

    async def _keep_booted(self) -> None:
        """Boot the worker, and boot it again when it has rebooted or powered off."""
        while not self._stopped:
            await self._start_worker()
            await asyncio.sleep(_REBOOT_SECONDS)

    async def _run_startup_script(self, script: str) -> None:
        await self._start_worker()
        if self._stopped:
            return
        try:
            await run_startup_script(self._worker, self._engine, script)
        except (OSError, TpukitError) as error:
            _log.warning("%s: its start-up script: %s", self._worker.record.hostname, error)

    async def _start_worker(self) -> None:
        async with self._changing:
            if self._stopped:
                return
            try:
                sockets = await asyncio.to_thread(self._engine.start, self._worker)
            except (OSError, TpukitError) as error:  # the session then fails with a message
                text = " ".join(error.lines()) if isinstance(error, TpukitError) else str(error)
                _log.warning("%s does not start: %s", self._worker.record.hostname, text)
                return
            if sockets:
                await self._open(sockets)

    async def _open(self, sockets: WorkerSockets) -> None:
        for old in self._servers:
            old.close()
        node = self._worker.facts.node
        server = await start_metadata_server(
            *(self._worker, sockets.metadata, self._token),
            lambda: self._oracle.metadata(node),
        )
        self._servers = [server]
        if sockets.proxy:
            # Only two optional engines need this module.
            from tpukit.emulator.workers.engines.namespaces.http_proxy import start_proxy

            self._servers.append(await start_proxy(sockets.proxy, sockets.upstream))
            if sockets.api:
                self._servers.append(await start_proxy(sockets.api, sockets.api.getsockname()))
        if sockets.ssh:
            self.ssh.accept_from_workers(sockets.ssh)


class LocalWorkerHost:
    """Runs workers on this machine: a `WorkerHost`.

    `directory` holds a folder for each worker, `WorkerRecord.folder_name`. `identity` marks this
    emulator's processes. `token` returns the access token of the workers' service accounts. A
    change of workers that takes longer than `patience` seconds is cancelled and raises
    `TimeoutError`.
    """

    def __init__(
        self,
        directory: Path,
        identity: str,
        oracle: WorkerOracle,
        engine: Engine,
        randomness: random.Random,
        token: Callable[[], str] = str,
        patience: float = 60.0,
    ) -> None:
        self._token = token
        self._patience = patience
        self._directory = directory
        self._identity = identity
        self._oracle = oracle
        self._engine = engine
        self._randomness = randomness
        self._addresses = AddressBook(randomness)
        self._vms: dict[str, list[_Vm]] = {}
        self._released: list[str] = []  #: the addresses of the last deleted node
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="workers", daemon=True)
        self._thread.start()

    def allocate(self, node: str, count: int, hostname: str = "") -> list[WorkerRecord]:
        slice_id = f"{self._randomness.getrandbits(32):08x}"
        if hostname:  # projects and zones can have instances of the same name
            (address,) = self._choose(node, 1)
            return [replace(new_record(0, address, hostname), folder=f"{hostname}-{slice_id}")]
        return [
            new_record(index, address, f"t1v-n-{slice_id}-w-{index}")
            for index, address in enumerate(self._choose(node, count))
        ]

    def move(self, node: str, workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
        self._addresses.release(node)
        addresses = self._addresses.take(node, len(workers))
        return [
            replace(worker, address=address, port=free_port(address))
            for worker, address in zip(workers, addresses, strict=True)
        ]

    def boot(
        self, node: dict[str, Any], workers: Sequence[WorkerRecord], only: int | None = None
    ) -> None:
        name = node["name"]
        if name in self._vms:
            return
        facts = SliceFacts.of(node, workers, self._oracle.project_number(name))
        self._vms[name] = self._call(self._start(facts, only))

    def guest_attributes(self, worker: WorkerRecord) -> Mapping[str, str]:
        return read_attributes(self._directory / worker.folder_name)

    def refresh(self) -> None:
        self._call(self._refresh())

    def halt(self, node: str) -> None:
        if vms := self._vms.get(node):
            self._call(self._stop(vms))
            self._engine.end(self._marker(node))
            del self._vms[node]

    def keep_only(self, workers: Collection[WorkerRecord]) -> None:
        """Remove the files of all other workers: their state was moved away or lost.

        The folder's name identifies the worker, because programs may damage its content.
        """
        known = {worker.folder_name for worker in workers}
        for folder in all_folders(self._directory):
            if folder.name not in known:
                _log.warning("%s is removed: no slice has this worker", folder)
                _remove(folder)

    def discard(self, node: str) -> None:
        """Halt the workers, remove their files and release their addresses."""
        self.halt(node)
        for folder in folders(self._directory, node):
            _remove(folder)
        self._released = self._addresses.release(node) or self._released

    def close(self) -> None:
        """Halt every node; the workers' files stay for the next start."""
        vms = [vm for group in self._vms.values() for vm in group]
        self._vms.clear()
        try:
            self._call(self._stop(vms))
        except TimeoutError as error:  # the engine ends their processes in any case
            _log.warning("%s", error)
        self._engine.end(f"{self._identity}/")
        self._engine.close()
        self._addresses.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)

    def _choose(self, node: str, count: int) -> list[str]:
        """Return new addresses, or those of the last deleted node if a fault asks for them."""
        last = self._released[:count]
        fault = len(last) == count and self._oracle.worker_faults.take((node, 0), "reused-address")
        if not fault:
            # The order is random, as on real slices: docs/reference/real-workers.md.
            return self._randomness.sample(self._addresses.take(node, count), count)
        for address in last:
            self._addresses.keep(node, address)
        return last

    def _marker(self, node: str) -> str:
        return f"{self._identity}/{node}/"

    async def _start(self, facts: SliceFacts, only: int | None) -> list[_Vm]:
        started: list[_Vm] = []
        try:
            for record in [one for one in facts.workers if only in (None, one.index)]:
                started.append(vm := self._listen(facts, record))
                await vm.ssh.fault_effects.refresh()
                vm.boot()
        except (OSError, asyncio.CancelledError):
            await self._stop(started)
            raise
        return started

    def _listen(self, facts: SliceFacts, record: WorkerRecord) -> _Vm:
        self._oracle.worker_faults.restart((facts.node, record.index))
        folder = self._directory / record.folder_name
        worker = EmulatedWorker(record, facts, folder, f"{self._marker(facts.node)}{record.index}")
        self._addresses.keep(facts.node, record.address)
        vm = _Vm(worker, self._engine, self._oracle, self._token)
        vm.ssh.start(listening(record.address, record.port))
        return vm

    async def _refresh(self) -> None:
        vms = [vm for group in self._vms.values() for vm in group]
        await asyncio.gather(*(vm.ssh.fault_effects.refresh() for vm in vms))

    async def _stop(self, vms: Sequence[_Vm]) -> None:
        await asyncio.gather(*(vm.stop() for vm in vms))

    def _call(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Run a coroutine on the workers' loop; cancel it if it takes too long."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(self._patience)
        except TimeoutError as error:
            running.cancel()
            raise TimeoutError(f"the workers did not answer in {self._patience:g} s") from error


def _remove(folder: Path) -> None:
    """Remove a worker's files, including those that it shares with others."""
    remove_shares(folder)
    remove(folder)


def new_record(index: int, address: str, hostname: str) -> WorkerRecord:
    """Return a new worker with a new host key and a free port."""
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
