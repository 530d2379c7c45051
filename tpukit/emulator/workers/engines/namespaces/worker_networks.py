"""The networks of an emulator's workers, on one bridge, and their only way out: an HTTP proxy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from tpukit.emulator.workers.engines.engine import EmulatedWorker, WorkerSockets
from tpukit.emulator.workers.engines.namespaces import http_proxy
from tpukit.emulator.workers.engines.namespaces.network import Bridge, NetworkNamespace
from tpukit.errors import TpukitError

#: The address of Compute Engine's metadata server.
METADATA = "169.254.169.254"
#: The limits of all engines that give workers their own networks.
SHARED_LIMITS = (
    "root on a worker is root in this machine's kernel: this prevents accidents, not attacks",
    "workers connect to other machines only through an HTTP proxy, and cannot resolve names",
    "this machine's processors and memory limit a worker, not its own",
)
_PROXY = f"127.0.0.1:{http_proxy.PORT}"
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_SECONDS = 10.0


class WorkerNetworks:
    """Makes the network of each worker; `inherited` may name this machine's own proxy.

    `api_port` returns the port of the emulator's API on 127.0.0.1, or 0 for none. Workers call the
    API at the same address.
    """

    def __init__(self, inherited: Mapping[str, str], api_port: Callable[[], int]) -> None:
        self._proxy = _proxy_of(inherited)
        self._api_port = api_port
        self._bridge: Bridge | None = None
        self._changing = threading.Lock()

    def make(
        self, worker: EmulatedWorker, serve_ssh: bool
    ) -> tuple[NetworkNamespace, WorkerSockets]:
        """Return a new network for a worker, with sockets for this process's servers in it.

        Without `serve_ssh`, port 22 stays free for the worker's own SSH server.
        """
        network, api_port = NetworkNamespace(), self._api_port()
        try:
            with self._changing:
                self._bridge = self._bridge or Bridge()
            self._bridge.attach(network, [METADATA], worker.address)
            sockets = WorkerSockets(
                metadata=network.listening(METADATA, 80),
                ssh=network.listening(worker.address, 22) if serve_ssh else None,
                proxy=network.listening("127.0.0.1", http_proxy.PORT),
                upstream=self._upstream,
                api=network.listening("127.0.0.1", api_port) if api_port else None,
            )
        except (OSError, TpukitError):
            network.close()
            raise
        return network, sockets

    def variables(self, worker: EmulatedWorker) -> dict[str, str]:
        """Return the variables that point a worker's programs to the proxy."""
        # Every address by itself: not all programs understand networks in no_proxy.
        direct = ["localhost", "127.0.0.1", METADATA, "metadata.google.internal", "metadata"]
        direct += [*worker.facts.addresses, *(record.hostname for record in worker.facts.workers)]
        exceptions = dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(direct))
        return {**dict.fromkeys(_PROXIES, self._url), **exceptions}

    def hosts(self, worker: EmulatedWorker) -> str:
        """Return a worker's /etc/hosts."""
        facts = worker.facts
        lines = ["127.0.0.1 localhost", f"{METADATA} metadata.google.internal metadata"]
        for record in facts.workers:
            lines.append(f"{record.address} {facts.full_hostname(record.index)} {record.hostname}")
        return "\n".join(lines) + "\n"

    def apt_settings(self) -> str:
        """Return the settings of a worker's apt."""
        lines = [f'Acquire::{kind}::Proxy "{self._url}";' for kind in ("http", "https")]
        # Keep apt's caches, as on a VM: in a container, apt is often configured without them.
        lines += [f'Dir::Cache::{name} "{name}.bin";' for name in ("pkgcache", "srcpkgcache")]
        return "\n".join(lines) + "\n"

    def close(self) -> None:
        if self._bridge:
            self._bridge.close()
            self._bridge = None

    @property
    def _upstream(self) -> tuple[str, int] | None:
        """Host and port of this machine's own proxy, or None."""
        proxy = urlsplit(self._proxy)
        return (proxy.hostname, proxy.port or 80) if proxy.hostname else None

    @property
    def _url(self) -> str:
        """The URL of the proxy inside, with the user and password for the machine's own."""
        secret, at, _ = urlsplit(self._proxy).netloc.rpartition("@")
        return f"http://{secret}{at}{_PROXY}"


def connect(network: NetworkNamespace, host: str, port: int) -> socket.socket:
    """Return a connection from a worker's network to `host`."""
    return network.inside(lambda: socket.create_connection((host, port), _SECONDS))


def without_proxies(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the inherited variables without those that name proxies."""
    return {name: value for name, value in inherited.items() if "proxy" not in name.lower()}


def _proxy_of(inherited: Mapping[str, str]) -> str:
    names = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
    value = next((inherited[name] for name in names if inherited.get(name)), "")
    return value if value.startswith("http://") else ""
