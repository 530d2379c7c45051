"""The engine of Linux with root: every worker has a network, a root and processes of its own."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tpukit.emulator import processes, proxy
from tpukit.emulator.capsule import Capsule, make_capsule
from tpukit.emulator.engine import (
    SYSTEM_PATH,
    Doors,
    EmulatedWorker,
    Files,
    Login,
    Program,
    home_folder,
    install_programs,
    make_folders,
)
from tpukit.emulator.folders import remove
from tpukit.emulator.network import Network, Switch
from tpukit.errors import TpukitError

#: Where Compute Engine's metadata server is.
METADATA = "169.254.169.254"
_FOLDERS = ("bin", "home", "tmp", "etc", "upper", "work", "root")
_REPLACED = ("/home", "/root", "/tmp")  #: a worker has folders of its own in their place
_PROXY = f"127.0.0.1:{proxy.PORT}"
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_PROGRAMS = "/opt/emulated-worker/bin"
_SECONDS = 10.0


class NamespacesEngine:
    """Makes a worker's namespaces at its first login.

    `site` and `interpreter` are those of the portable engine; `hidden` are folders of this machine
    that workers do not see, but for what `site` names there.
    """

    name = "namespaces"
    limits: tuple[str, ...] = (
        "every user is root, and sudo changes nothing",
        "root on a worker is root of this machine's kernel: accidents stay inside, attacks do not",
        "connections leave a worker through an HTTP proxy alone: no name resolution, no other way",
        "what a worker runs is limited by this machine's processors and memory, not by its own",
        "accelerator device files are there and cannot be used",
    )

    def __init__(self, site: Mapping[str, str], interpreter: Path, hidden: Sequence[Path]) -> None:
        self._site = {name: value for name, value in site.items() if "proxy" not in name.lower()}
        self._way_out = _proxy_of(site)
        self._interpreter = interpreter
        self._hidden = tuple(hidden)
        self._capsules: dict[str, Capsule] = {}
        self._switch: Switch | None = None
        self._changing = threading.Lock()

    @property
    def _upstream(self) -> tuple[str, int] | None:
        """The proxy of this machine's site, to which workers' connections are left."""
        found = urlsplit(self._way_out)
        return (found.hostname, found.port or 80) if found.hostname else None

    def wake(self, worker: EmulatedWorker) -> Doors | None:
        if self._awake(worker):
            return None
        remove(worker.folder / "work")  # the kernel's own notes, of no use to the next mount
        make_folders(worker, _FOLDERS)
        # The root of every process inside, of whichever account.
        (worker.folder / "upper").chmod(0o755)
        (worker.folder / "tmp").chmod(0o1777)
        install_programs(worker, ("sudo", "python3", "pip3", "init"), self._interpreter)
        self._note(worker)
        network = Network()
        try:
            self._joined(network, worker.address)
            doors = Doors(
                metadata=network.listening(METADATA, 80),
                ssh=network.listening(worker.address, 22),
                proxy=network.listening("127.0.0.1", proxy.PORT),
                upstream=self._upstream,
            )
            chips = worker.facts.accelerator.chips_per_worker if worker.facts.devices else 0
            capsule = make_capsule(worker, network, chips)
        except (OSError, TpukitError):
            network.close()
            raise
        with self._changing:
            self._capsules[worker.marker] = capsule
        return doors

    def files(self, worker: EmulatedWorker, user: str) -> Files:
        return Files(self._home(worker, user), self._capsule(worker).root)

    def program(self, worker: EmulatedWorker, login: Login) -> Program:
        capsule = self._capsule(worker)
        home = self._home(worker, login.user)
        environment = {
            **self._site,
            "UV_LINK_MODE": "copy",  # the caches are another mount
            **self._proxies(worker),
            **worker.facts.environment(worker.index, METADATA),
            **login.environment(home),
            "PATH": f"{_PROGRAMS}:{SYSTEM_PATH}",
            "TMPDIR": "/tmp",
            processes.MARKER: worker.marker,
        }
        return Program(
            arguments=("env", f"--chdir={home}", *login.words),
            environment=environment,
            directory=Path("/"),
            entrance=capsule.entrance(),
            terminals=capsule.root / "dev/pts",
        )

    def connect(self, worker: EmulatedWorker, host: str, port: int) -> socket.socket:
        network = self._capsule(worker).network
        return network.inside(lambda: socket.create_connection((host, port), _SECONDS))

    def end(self, marker: str) -> None:
        with self._changing:
            found = [name for name in self._capsules if name.startswith(marker)]
            capsules = [self._capsules.pop(name) for name in found]
        for capsule in capsules:
            capsule.end()

    def close(self) -> None:
        if self._switch:
            self._switch.close()
            self._switch = None

    def _capsule(self, worker: EmulatedWorker) -> Capsule:
        capsule = self._capsules.get(worker.marker)
        if capsule is None:
            raise TpukitError("the worker's namespaces could not be made")
        return capsule

    def _awake(self, worker: EmulatedWorker) -> bool:
        with self._changing:
            capsule = self._capsules.get(worker.marker)
            if capsule is None or capsule.alive:
                return capsule is not None
            del self._capsules[worker.marker]
        capsule.end()  # somebody inside killed the first process
        return False

    def _joined(self, network: Network, address: str) -> None:
        with self._changing:
            self._switch = self._switch or Switch()
        self._switch.join(network, [METADATA], address)

    def _home(self, worker: EmulatedWorker, user: str) -> Path:
        home_folder(worker, user).mkdir(mode=0o700, exist_ok=True)
        return Path("/home", user)

    def _note(self, worker: EmulatedWorker) -> None:
        facts = worker.facts
        lines = ["127.0.0.1 localhost", f"{METADATA} metadata.google.internal metadata"]
        for record in facts.workers:
            lines.append(f"{record.address} {facts.full_hostname(record.index)} {record.hostname}")
        (worker.folder / "etc/hosts").write_text("\n".join(lines) + "\n")
        apt = [f'Acquire::{kind}::Proxy "{self._proxy_url}";' for kind in ("http", "https")]
        (worker.folder / "etc/apt.conf").write_text("\n".join(apt) + "\n")
        (worker.folder / "etc/layout").write_text("".join(f"{line}\n" for line in self._layout()))

    @property
    def _proxy_url(self) -> str:
        """The way out by the name it has inside; a site's proxy may want a password with it."""
        secret, at, _ = urlsplit(self._way_out).netloc.rpartition("@")
        return f"http://{secret}{at}{_PROXY}"

    def _proxies(self, worker: EmulatedWorker) -> dict[str, str]:
        # Addresses one by one: not everybody reads networks in no_proxy.
        direct = ["localhost", "127.0.0.1", METADATA, "metadata.google.internal", "metadata"]
        direct += [*worker.facts.addresses, *(record.hostname for record in worker.facts.workers)]
        exceptions = dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(direct))
        return {**dict.fromkeys(_PROXIES, self._proxy_url), **exceptions}

    def _layout(self) -> Iterator[str]:
        """Hide this machine's private folders, and show in them what the site's settings name."""
        replaced = [Path(name) for name in _REPLACED]
        for folder in self._hidden:
            if not any(folder.is_relative_to(each) for each in replaced):
                yield f"hide\t{folder}"
        if self._is_hidden(Path(sys.base_prefix)):
            yield f"show\t{sys.base_prefix}"
        for name, value in self._site.items():
            path = Path(value)
            if not path.is_absolute() or not self._is_hidden(path):
                continue
            if name.endswith("_CACHE_DIR"):
                path.mkdir(parents=True, exist_ok=True)
                yield f"share\t{path}"
            elif path.exists():
                yield f"show\t{path}"

    def _is_hidden(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._hidden)


def hidden_folders(home: Path, emulator: Path) -> tuple[Path, ...]:
    """Return the folders of this machine that are nobody's business on a worker."""
    found = [*(Path(name) for name in (*_REPLACED, "/var/tmp")), home, emulator]
    return tuple(dict.fromkeys(folder.resolve() for folder in found))


def _proxy_of(site: Mapping[str, str]) -> str:
    names = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
    found = next((site[name] for name in names if site.get(name)), "")
    return found if found.startswith("http://") else ""
