"""The shared part of the engines that give every worker its own network.

All networks are on one bridge; their only way out is an HTTP proxy.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from tpukit.emulator.workers.engines.engine import EmulatedWorker, WorkerSockets
from tpukit.emulator.workers.engines.namespaces import http_proxy
from tpukit.emulator.workers.engines.namespaces.network import Bridge, NetworkNamespace
from tpukit.errors import TpukitError

#: The address of Compute Engine's metadata server.
METADATA = "169.254.169.254"
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


class StartedWorker(Protocol):
    """The namespaces or the machine of a worker."""

    @property
    def network(self) -> NetworkNamespace: ...

    @property
    def alive(self) -> bool: ...

    def end(self) -> None:
        """Kill all processes inside, and remove all traces."""
        ...


_Started = TypeVar("_Started", bound=StartedWorker)


class NetworkedEngine(Generic[_Started]):
    """The networks and the started workers of an engine. Safe to use from many threads.

    `inherited` has the same meaning as in `PortableEngine`, `api_port` as in `WorkerNetworks`.
    """

    limits: tuple[str, ...] = (
        "root on a worker is root in this machine's kernel: this prevents accidents, not attacks",
        "workers connect to other machines only through an HTTP proxy, and cannot resolve names",
        "this machine's processors and memory limit a worker, not its own",
    )

    def __init__(self, inherited: Mapping[str, str], api_port: Callable[[], int]) -> None:
        self._inherited = without_proxies(inherited)
        self._networks = WorkerNetworks(inherited, api_port)
        self._by_marker: dict[str, _Started] = {}
        self._changing = threading.Lock()

    def connect(self, worker: EmulatedWorker, host: str, port: int) -> socket.socket:
        return connect(self._started(worker).network, host, port)

    def close(self) -> None:
        self._networks.close()

    def _add(self, worker: EmulatedWorker, started: _Started) -> None:
        with self._changing:
            self._by_marker[worker.marker] = started

    def _started(self, worker: EmulatedWorker) -> _Started:
        started = self._by_marker.get(worker.marker)
        if started is None:
            raise TpukitError(f"the worker {worker.record.hostname} does not run")
        return started

    def _is_running(self, worker: EmulatedWorker) -> bool:
        """Return True if the worker runs; clean up if it has ended by itself."""
        with self._changing:
            started = self._by_marker.get(worker.marker)
            if started is None or started.alive:
                return started is not None
            del self._by_marker[worker.marker]
        started.end()
        return False

    def _take(self, marker: str) -> list[_Started]:
        """Remove and return the workers with a marker that begins with `marker`."""
        with self._changing:
            markers = [name for name in self._by_marker if name.startswith(marker)]
            return [self._by_marker.pop(name) for name in markers]


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
