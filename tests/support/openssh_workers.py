"""Workers that are OpenSSH's own server: one process each, behind an emulated API.

Each has an address, a host key and a home of its own, and can be restarted, moved and impersonated.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from support import operation_metadata
from support.command_line import Tpukit
from support.local_cloud import TOKEN, Cloud
from support.login_account import Account, login_account
from support.openssh_server import (
    IN_ITS_HOME,
    end_sshd,
    home_of,
    new_key,
    sshd_path,
    stalled,
    start_sshd,
)
from tpukit.clock import SystemClock
from tpukit.emulator.api.http_server import build_server
from tpukit.emulator.workers.addresses import free_port
from tpukit.emulator.workers.paper_host import PaperHost
from tpukit.emulator.workers.worker_host import WorkerOracle, WorkerRecord

__all__ = ["OpenSshHost", "OpenSshWorkers", "openssh_workers", "running"]

NAME = "pod"


@contextmanager
def running(tpukit: Tpukit, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and end it where the test has failed."""
    with tpukit.start(*words) as process:
        try:
            yield process
        finally:
            process.kill()


class OpenSshHost(PaperHost):
    """Boots every worker as an sshd."""

    def __init__(self, oracle: WorkerOracle, directory: Path, account: Account) -> None:
        super().__init__(oracle)
        self.account = account
        self._directory = directory
        self._network = f"127.{random.randrange(80, 250)}.{random.randrange(1, 250)}"
        self._servers: dict[int, subprocess.Popen[bytes]] = {}
        self._strangers: list[subprocess.Popen[bytes]] = []

    def allocate(self, node: str, count: int) -> list[WorkerRecord]:
        return [self._real(each) for each in super().allocate(node, count)]

    def boot(self, node: dict[str, Any], workers: Sequence[WorkerRecord]) -> None:
        if node["name"] in self.booted:
            return
        super().boot(node, workers)
        for worker in workers:
            self.account.furnish(self.home(worker.index))
            self.serve(worker)
        threading.Thread(target=self._admit, args=(node["name"],), daemon=True).start()

    def home(self, index: int) -> Path:
        return self._directory / f"home-of-{index}"

    def before_server(self, index: int) -> Sequence[str]:
        """Return the words of a program that starts a worker's server."""
        return ()

    def serve(self, worker: WorkerRecord) -> None:
        """Start a worker's server, and return when it greets."""
        key = self._key_file(f"host-{worker.index}", worker.host_private_key.encode())
        log = self._directory / f"log-of-{worker.index}"
        self._servers[worker.index] = self._started(worker, key, log)

    def stop(self, index: int) -> None:
        """End a worker's server, if it runs, with its connections; the commands go on."""
        server = self._servers.pop(index, None)
        if server:
            end_sshd(server)

    def stalled(self, index: int) -> AbstractContextManager[None]:
        """Let a worker's server and its connections stand still; the commands go on."""
        return stalled(self._servers[index])

    def impersonate(self, worker: WorkerRecord) -> None:
        """Let a stranger answer where a worker was, who would admit whom the worker admits."""
        key = self._key_file("stranger", new_key()[0].encode())
        self._strangers.append(self._started(worker, key, self.stranger_log))

    @property
    def stranger_log(self) -> Path:
        """What strangers have met with."""
        return self._directory / "log-of-strangers"

    def away(self, worker: WorkerRecord) -> WorkerRecord:
        """Return the same worker at another address."""
        *network, last = worker.address.split(".")
        return replace(worker, address=".".join([*network, str(int(last) + 10)]))

    def close(self) -> None:
        self.booted.clear()
        for server in [*self._servers.values(), *self._strangers]:
            end_sshd(server)

    def _real(self, paper: WorkerRecord) -> WorkerRecord:
        private, public = new_key()
        address = f"{self._network}.{paper.index + 1}"
        return replace(
            paper,
            address=address,
            port=free_port(address),
            host_private_key=private,
            host_public_key=public,
        )

    def _key_file(self, name: str, private: bytes) -> Path:
        file = self._directory / name
        file.write_bytes(private)
        file.chmod(0o600)
        return file

    def _started(self, worker: WorkerRecord, key: Path, log: Path) -> subprocess.Popen[bytes]:
        options: dict[str, object] = {
            "HostKey": key,
            "AuthorizedKeysFile": self._directory / "authorized_keys",
            # A worker's debugging would come out on its commands' stderr.
            "LogLevel": "DEBUG1" if log == self.stranger_log else "ERROR",
            "SetEnv": f"HOME={self.home(worker.index)}",
            "ForceCommand": IN_ITS_HOME,
        }
        before = self.before_server(worker.index)
        return start_sshd(worker.address, worker.port, log, options, before)

    def _admit(self, node: str) -> None:
        """Do what the guest agent does: let in the keys of the metadata as they come."""
        file = self._directory / "authorized_keys"
        while node in self.booted:
            lines = [line for user, line in self.oracle.authorized_keys(node)]
            new = file.with_suffix(".new")
            new.write_text("".join(f"{line}\n" for line in lines))
            new.replace(file)
            time.sleep(0.2)


@dataclass
class OpenSshWorkers:
    """One slice of such workers, and the program that finds it."""

    tpukit: Tpukit
    cloud: Cloud
    host: OpenSshHost

    @property
    def workers(self) -> list[WorkerRecord]:
        records = self.cloud.server.service.context.state.nodes[self.cloud.full_name(NAME)]
        return [WorkerRecord(**worker) for worker in records["workers"]]

    def restart(self, index: int) -> None:
        """Stop a worker's server with its connections, and start it again."""
        self.host.stop(index)
        self.host.serve(self.workers[index])

    def move(self, index: int, stranger: bool) -> None:
        """Let a worker go on at another address, of which the API tells.

        Whether a stranger then answers at the old one is the caller's choice.
        """
        before = self.workers[index]
        after = self.host.away(before)
        self._publish(index, after)
        self.host.stop(index)
        self.host.serve(after)
        if stranger:
            self.host.impersonate(before)

    @contextmanager
    def forged(self, index: int) -> Iterator[None]:
        """Let a worker's guest attributes publish a key that its server does not have."""
        genuine = self.workers[index]
        self._publish(index, replace(genuine, host_public_key=new_key()[1]))
        yield
        self._publish(index, genuine)

    def processes(self) -> list[psutil.Process]:
        """Return what runs on the workers."""
        homes = {str(self.host.home(worker.index)) for worker in self.workers}
        return [process for process in psutil.process_iter() if home_of(process) in homes]

    def _publish(self, index: int, worker: WorkerRecord) -> None:
        nodes, name = self.cloud.server.service.context.state.nodes, self.cloud.full_name(NAME)
        workers = [worker if remote.index == index else remote for remote in self.workers]
        nodes[name] = {**nodes[name], "workers": [asdict(worker) for worker in workers]}


@contextmanager
def openssh_workers(
    accelerator_type: str, host_of: type[OpenSshHost] = OpenSshHost
) -> Iterator[OpenSshWorkers]:
    """Run one server for each worker of a slice whose firewall rule admits us.

    An ordinary user logs in where one can be made. The folder is open to it, as pytest's own are
    not.
    """
    sshd_path()
    with contextlib.ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(TemporaryDirectory(prefix="tpukit-openssh-")))
        directory.chmod(0o755)
        account = cleanup.enter_context(login_account(directory))
        hosts: list[OpenSshHost] = []

        def host(oracle: WorkerOracle) -> OpenSshHost:
            hosts.append(host_of(oracle, directory, account))
            cleanup.callback(hosts[0].close)
            return hosts[0]

        kind = operation_metadata.of_this_run()
        server = build_server(
            directory / "emulator", TOKEN, host, create_seconds=0.0, operation_metadata=kind
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cleanup.callback(server.shutdown)
        cloud = Cloud(server, SystemClock(), directory)
        user = {"USER": account.name, "TPUKIT_USER": account.name}
        tpukit = Tpukit(directory, {**cloud.environment(), **user})
        cleanup.callback(_kill_all, tpukit)
        tpukit.succeeds("create", accelerator_type, NAME)
        tpukit.succeeds("firewall", "apply", NAME)
        tpukit.succeeds("run", NAME, "--", "true")
        yield OpenSshWorkers(tpukit, cloud, hosts[0])


def _kill_all(tpukit: Tpukit) -> None:
    for process in tpukit.processes():
        with contextlib.suppress(psutil.Error):
            process.kill()
