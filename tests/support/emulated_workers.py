"""Emulated workers without an API: a host, an oracle that a test commands, and real SSH clients."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
import pytest

from tpukit.emulator.faults.worker_faults import WorkerFaults
from tpukit.emulator.workers.engines.engine import Engine, base_interpreter
from tpukit.emulator.workers.engines.engine_choice import lacking
from tpukit.emulator.workers.engines.namespaces.namespaces_engine import (
    NamespacesEngine,
    hidden_folders,
)
from tpukit.emulator.workers.engines.portable import PortableEngine
from tpukit.emulator.workers.inherited_environment import inherited_environment
from tpukit.emulator.workers.local_worker_host import LocalWorkerHost
from tpukit.emulator.workers.worker_host import WorkerRecord

NODE = "projects/p/locations/us-central1-a/nodes/n1"
USER = "ada"
#: Sums over all devices of the slice; each process prints what it sees.
JAX_SUM = """
import jax, jax.numpy as jnp, numpy as np
jax.distributed.initialize()
from jax.sharding import Mesh, NamedSharding, PartitionSpec
n = jax.device_count()
mesh = Mesh(np.array(jax.devices()), ("all",))
split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("all",), ()))
numbers = np.arange(n, dtype=np.float32)
spread = jax.make_array_from_callback((n,), split, lambda index: numbers[index])
total = jax.jit(jnp.sum, out_shardings=whole)(spread)
print("seen", jax.process_index(), jax.process_count(), jax.local_device_count(), n, float(total))
"""
_LACKS = lacking(sys.platform, os.geteuid(), shutil.which)
needs_root = pytest.mark.skipif(bool(_LACKS), reason=f"the namespaces engine needs {_LACKS}")
needs_curl = pytest.mark.skipif(
    shutil.which("curl") is None, reason="no curl: NOT checked by this run"
)


def portable(directory: Path) -> Engine:
    return PortableEngine(inherited_environment(os.environ, Path.home()), base_interpreter())


def namespaces(directory: Path) -> Engine:
    inherited = inherited_environment(os.environ, Path.home())
    hidden = hidden_folders(Path.home(), directory)
    return NamespacesEngine(inherited, base_interpreter(), hidden)


def possible_engines() -> list[Any]:
    """Return parameters for tests of every engine; what this machine cannot run says why."""
    return [
        pytest.param(portable, id="portable"),
        pytest.param(namespaces, id="namespaces", marks=needs_root),
    ]


def make_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def ssh_options(directory: Path, key: Path, workers: Sequence[WorkerRecord]) -> list[str]:
    """Return options of OpenSSH that use this key alone and trust these workers' keys alone."""
    known = directory / f"known_hosts_{secrets.token_hex(4)}"
    lines = [f"{host_name(worker)} {worker.host_public_key}\n" for worker in workers]
    known.write_text("".join(lines))
    return [
        *("-F", "none", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
        *("-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={known}"),
        *("-o", "LogLevel=ERROR", "-o", "ConnectTimeout=60"),
    ]


def host_name(worker: WorkerRecord) -> str:
    """Return how known_hosts names the worker."""
    return worker.address if worker.port == 22 else f"[{worker.address}]:{worker.port}"


@dataclass
class Rules:
    """What the service would answer."""

    keys: list[tuple[str, str]]
    open: bool = True
    near: list[str] = field(default_factory=list)
    items: dict[str, str] | None = None  #: of an instance of Compute Engine
    worker_faults: WorkerFaults = field(default_factory=lambda: WorkerFaults(time.monotonic))

    def authorized_keys(self, node: str) -> Sequence[tuple[str, str]]:
        return self.keys

    def admits(self, node: str, source_ip: str, port: int) -> bool:
        return self.open and port == 22

    def neighbours(self, node: str) -> Sequence[str]:
        return self.near

    def metadata(self, node: str) -> dict[str, str] | None:
        return self.items

    def project_number(self, node: str) -> str:
        return "123456789012"


@dataclass
class EmulatedWorkers:
    """The workers of one node and the clients that test them."""

    directory: Path
    engine: Callable[[Path], Engine] = portable
    patience: float = 60.0
    key: Path = field(init=False)
    rules: Rules = field(init=False)
    host: LocalWorkerHost = field(init=False)
    records: list[WorkerRecord] = field(default_factory=list)
    options: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = make_key(self.directory / "key")
        self.rules = Rules([(USER, self.key.with_suffix(".pub").read_text())])
        self.identity = secrets.token_hex(8)
        self.host = self.new_host()

    def close(self) -> None:
        self.host.close()

    def new_host(self) -> LocalWorkerHost:
        engine = self.engine(self.directory)
        folder = self.directory / "workers"
        return LocalWorkerHost(
            *(folder, self.identity, self.rules, engine, random.SystemRandom()),
            patience=self.patience,
        )

    def allocate(self, count: int = 1, node: str = NODE) -> list[WorkerRecord]:
        self.trust(self.host.allocate(node, count))
        return self.records

    def trust(self, workers: list[WorkerRecord]) -> None:
        """Connect to these workers from now on, and trust their host keys alone."""
        self.records = workers
        self.options = ssh_options(self.directory, self.key, workers)

    def boot(
        self,
        accelerator_type: str = "v3-8",
        node: str = NODE,
        runtime_version: str = "tpu-ubuntu2204-base",
        **fields: Any,
    ) -> None:
        document = {
            **fields,
            "name": node,
            "id": "1234567890",
            "acceleratorType": accelerator_type,
            "runtimeVersion": runtime_version,
        }
        self.host.boot(document, self.records)

    def home(self, index: int = 0) -> Path:
        return self.directory / "workers" / self.records[index].hostname / "home" / USER

    def words(
        self, *words: str, index: int = 0, options: Sequence[str] = (), user: str = USER
    ) -> list[str]:
        worker = self.records[index]
        target = ["-p", str(worker.port), "-l", user, worker.address]
        return ["ssh", *self.options, *options, *target, *words]

    def ssh(
        self, *words: str, given: bytes = b"", **target: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Run OpenSSH's client to its end; `target` is what `words` takes."""
        line = self.words(*words, **target)
        return subprocess.run(line, input=given, capture_output=True, timeout=120, check=False)

    def output(self, *words: str, index: int = 0) -> str:
        """Return what a command that has to succeed prints."""
        done = self.ssh(*words, index=index)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def client(self, index: int = 0) -> paramiko.SSHClient:
        """Return a connected paramiko client that trusts the worker's key alone."""
        worker = self.records[index]
        client = paramiko.SSHClient()
        kind, body = worker.host_public_key.split()[:2]
        key = paramiko.PKey.from_type_string(kind, base64.b64decode(body))
        client.get_host_keys().add(host_name(worker), kind, key)
        client.connect(
            worker.address,
            worker.port,
            USER,
            key_filename=str(self.key),
            look_for_keys=False,
            allow_agent=False,
            banner_timeout=60,
            auth_timeout=60,
        )
        return client


@contextlib.contextmanager
def emulated_workers(
    directory: Path, engine: Callable[[Path], Engine] = portable, patience: float = 60.0
) -> Iterator[EmulatedWorkers]:
    """Yield a host without workers yet, and leave no process of it."""
    workers = EmulatedWorkers(directory, engine, patience)
    try:
        yield workers
    finally:
        workers.close()
