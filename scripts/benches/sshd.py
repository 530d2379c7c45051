"""Workers for measurements: one process of OpenSSH's own server each, on an address of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
from far import delayed

from tpukit.emulator.api.http_server import build_server
from tpukit.emulator.workers.paper_host import PaperHost
from tpukit.emulator.workers.worker_host import WorkerOracle, WorkerRecord

PROJECT, ZONE, NAME = "bench-project", "us-central2-b", "bench"
_TOKEN = "token-of-the-bench"


def sshd_path() -> str | None:
    """Return the OpenSSH server's path; SSHD names one that is not installed."""
    beside = [path for path in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if os.path.exists(path)]
    return os.environ.get("SSHD") or shutil.which("sshd") or next(iter(beside), None)


class SshdHost(PaperHost):
    """Boots every worker as an sshd on port 22 of a loopback address, which takes root."""

    def __init__(
        self, oracle: WorkerOracle, directory: Path, sshd: str, delay: float = 0.0
    ) -> None:
        super().__init__(oracle)
        self._directory = directory
        self._sshd = sshd
        self._home = directory / "remote-home"
        self._home.mkdir()
        self._servers: list[subprocess.Popen[bytes]] = []
        self._delay = delay
        self._network = contextlib.ExitStack()

    def boot(self, node: dict[str, Any], workers: Sequence[WorkerRecord]) -> None:
        if node["name"] not in self.booted:
            self.booted.add(node["name"])
            self._servers = [self._serve(worker) for worker in workers]
            threading.Thread(target=self._admit, args=(node["name"],), daemon=True).start()

    def close(self) -> None:
        self.booted.clear()
        self._network.close()
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.wait()

    def _record(self, index: int, number: int) -> WorkerRecord:
        private, public = new_key()
        file = self._directory / f"host-{index}"
        file.write_bytes(private)
        file.chmod(0o600)
        return WorkerRecord(
            index=index,
            address=f"127.66.{number // 250}.{number % 250 + 1}",
            port=22,
            hostname=f"t1v-n-bench-w-{index}",
            host_private_key=private.decode(),
            host_public_key=public,
        )

    def _serve(self, worker: WorkerRecord) -> subprocess.Popen[bytes]:
        address = worker.address
        if self._delay:  # the server is behind a far network, which has the worker's address
            address = address.replace("127.66.", "127.67.")
            self._network.enter_context(delayed((address, 22), self._delay, (worker.address, 22)))
        options = {
            "ListenAddress": address,
            "Port": "22",
            "HostKey": self._directory / f"host-{worker.index}",
            "AuthorizedKeysFile": self._directory / "authorized_keys",
            "StrictModes": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "PermitRootLogin": "prohibit-password",
            "MaxStartups": "300",
            # A bare one: what this account's own start files do is not what is measured.
            "SetEnv": f"HOME={self._home}",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            [self._sshd, "-D", "-f", "none", *words], stdout=quiet, stderr=quiet
        )

    def _admit(self, node: str) -> None:
        """Do what the guest agent does: let in the keys of the metadata as they come."""
        file = self._directory / "authorized_keys"
        ours = (self._directory / "client.pub").read_text()
        while node in self.booted:
            keys = [line for user, line in self.oracle.authorized_keys(node) if user == _user()]
            new = self._directory / "authorized_keys.new"
            new.write_text("\n".join([ours, *keys]) + "\n")
            new.replace(file)
            time.sleep(0.2)


@dataclass(frozen=True)
class SshdWorkers:
    """Workers that answer, and the environment in which tpukit and gcloud find their slice."""

    addresses: list[str]
    host_keys: list[str]
    key: Path
    known_hosts: Path
    user: str
    environment: dict[str, str]

    @property
    def options(self) -> str:
        """What OpenSSH has to be told to read no files of its user and offer one key."""
        own = f"-o UserKnownHostsFile={self.known_hosts} -i {self.key} -l {self.user}"
        return f"-F none -o BatchMode=yes -o IdentitiesOnly=yes -o IdentityAgent=none {own}"


@contextmanager
def sshd_workers(
    directory: Path, sshd: str, workers: int, delay: float = 0.0
) -> Iterator[SshdWorkers]:
    """Run `workers` real SSH servers behind an emulated API, as one slice named bench.

    Each of their answers comes `delay` seconds later.
    """
    from tpukit.clock import SystemClock
    from tpukit.google.access_tokens import AccessTokens
    from tpukit.google.credentials import find_credentials
    from tpukit.google.retrying_session import Session
    from tpukit.google.tpu import CloudTpu
    from tpukit.models import SliceRequest

    private, public = new_key()
    (directory / "client").write_bytes(private)
    (directory / "client").chmod(0o600)
    (directory / "client.pub").write_text(public)
    hosts: list[SshdHost] = []

    def host(oracle: WorkerOracle) -> SshdHost:
        hosts.append(SshdHost(oracle, directory, sshd, delay))
        return hosts[0]

    server = build_server(directory / "api", _TOKEN, host, create_seconds=0.0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    token = directory / "token"
    token.write_text(_TOKEN)
    clock = SystemClock()
    credentials = find_credentials(str(token), "", directory / "none")
    session = Session(AccessTokens(credentials, clock), clock)
    provider = CloudTpu(session, PROJECT, server.url)
    try:
        request = SliceRequest(NAME, PROJECT, ZONE, f"v4-{8 * workers}", "tpu-ubuntu2204-base")
        provider.create(request)
        found = provider.get(ZONE, NAME)
        while not found.ready:
            time.sleep(0.1)
            found = provider.get(ZONE, NAME)
        addresses = [worker.address for worker in found.workers]
        wait_for(addresses)
        identities = sorted(provider.identities(ZONE, NAME), key=lambda each: each.index)
        keys = [identity.host_keys[0] for identity in identities]
        known_hosts = directory / "known_hosts"
        lines = (f"{place} {key}\n" for place, key in zip(addresses, keys, strict=True))
        known_hosts.write_text("".join(lines))
        environment = _environment(directory, server.url)
        yield SshdWorkers(addresses, keys, directory / "client", known_hosts, _user(), environment)
    finally:
        for each in hosts:
            each.close()
        server.shutdown()


def new_key() -> tuple[bytes, str]:
    """Return a new ed25519 key: the private file's content and the public line."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    return key.export_private_key(), key.export_public_key().decode().strip()


def wait_for(addresses: Sequence[str]) -> None:
    """Return when every server greets."""
    for address in addresses:
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            with contextlib.suppress(OSError), socket.create_connection((address, 22), 5) as found:
                if found.recv(4) == b"SSH-":
                    break
            time.sleep(0.05)
        else:
            raise SystemExit(f"sshd does not answer on {address}: see {sshd_path()} -t")


def _user() -> str:
    return getpass.getuser()


def _environment(directory: Path, url: str) -> dict[str, str]:
    foreign = ("TPUKIT_", "CLOUDSDK_", "GOOGLE_")
    own = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    home = directory / "home"
    home.mkdir(exist_ok=True)
    return {
        **own,
        "HOME": str(home),
        "USER": _user(),
        "TPUKIT_HOME": str(directory / "tpukit"),
        "TPUKIT_USER": _user(),
        "CLOUDSDK_CONFIG": str(directory / "gcloud"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{url}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{url}/compute/v1/",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(directory / "token"),
        "CLOUDSDK_CORE_PROJECT": PROJECT,
        "CLOUDSDK_COMPUTE_ZONE": ZONE,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }
