"""The engine for Linux with root that runs every worker in its own namespaces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tpukit.emulator.workers import processes
from tpukit.emulator.workers.engines.engine import (
    CHIPS,
    CHIPS_HOOK,
    SYSTEM_PATH,
    WITH_CHIPS,
    EmulatedWorker,
    Login,
    SftpFolders,
    WorkerProgram,
    WorkerSockets,
    common_folder,
    home_folder,
    install_programs,
    make_folders,
    tpu_env,
)
from tpukit.emulator.workers.engines.namespaces.namespace import (
    WorkerNamespaces,
    entering,
    make_namespaces,
)
from tpukit.emulator.workers.engines.namespaces.networked_engine import METADATA, NetworkedEngine
from tpukit.emulator.workers.worker_folders import remove
from tpukit.errors import TpukitError

_FOLDERS = ("bin", "home", "tmp", "etc", "upper", "work", "root")
_STAND_INS = (
    *("journalctl", "sudo", "python3", "pip3", "init"),
    *("exportfs", "mount", "mount.nfs"),
)
_REPLACED = ("/home", "/root", "/tmp")  #: a worker has its own folders in their place
_PROGRAMS = "/opt/emulated-worker/bin"
_DISK_BYTES = 10 << 30  #: size of a data disk, in a sparse file


class NamespacesEngine(NetworkedEngine[WorkerNamespaces]):
    """Makes a worker's namespaces at its first login.

    `interpreter` is the worker's `python3`. `hidden` are folders of this machine that workers
    cannot see, except paths in them that `inherited` names.
    """

    name = "namespaces"
    limits: tuple[str, ...] = (
        "every user is root, and sudo changes nothing",
        *NetworkedEngine.limits,
        "accelerator device files exist but cannot be used",
        "a data disk is a file of this machine, and NFS is a folder of it that workers share",
    )

    def __init__(
        self,
        inherited: Mapping[str, str],
        interpreter: Path,
        hidden: Sequence[Path],
        api_port: Callable[[], int] = int,
    ) -> None:
        super().__init__(inherited, api_port)
        self._interpreter = interpreter
        self._hidden = tuple(hidden)

    def start(self, worker: EmulatedWorker) -> WorkerSockets | None:
        if self._is_running(worker):
            return None
        remove(worker.folder / "work")  # the kernel's notes about the last mount
        make_folders(worker, _FOLDERS)
        common_folder(worker, "exports")
        # Processes of every account inside have this folder as their root.
        (worker.folder / "upper").chmod(0o755)
        (worker.folder / "tmp").chmod(0o1777)
        install_programs(worker, _STAND_INS, self._interpreter)
        self._write_settings(worker)
        network, sockets = self._networks.make(worker, serve_ssh=True)
        chips = worker.facts.accelerator.chips_per_worker if worker.facts.devices else 0
        try:
            self._add(worker, make_namespaces(worker, network, "init", str(chips)))
        except (OSError, TpukitError):
            network.close()
            raise
        return sockets

    def files(self, worker: EmulatedWorker, user: str) -> SftpFolders:
        return SftpFolders(self._home(worker, user), self._started(worker).root)

    def program(self, worker: EmulatedWorker, login: Login) -> WorkerProgram:
        namespaces = self._started(worker)
        home = self._home(worker, login.user)
        environment = {
            **self._inherited,
            "UV_LINK_MODE": "copy",  # the caches are another mount
            **self._networks.variables(worker),
            **worker.facts.environment(worker.index, METADATA),
            **login.environment(home),
            "PATH": f"{_PROGRAMS}:{SYSTEM_PATH}",
            "TMPDIR": "/tmp",
            CHIPS: f"{_PROGRAMS}/{CHIPS_HOOK}",
            processes.MARKER: worker.marker,
        }
        return WorkerProgram(
            arguments=("env", f"--chdir={home}", f"{_PROGRAMS}/{WITH_CHIPS}", *login.words),
            environment=environment,
            directory=Path("/"),
            enter=entering(namespaces.first),
            terminals=namespaces.root / "dev/pts",
        )

    def end(self, marker: str) -> None:
        for namespaces in self._take(marker):
            namespaces.end()

    def _home(self, worker: EmulatedWorker, user: str) -> Path:
        home_folder(worker, user).mkdir(mode=0o700, exist_ok=True)
        return Path("/home", user)

    def _write_settings(self, worker: EmulatedWorker) -> None:
        (worker.folder / "etc/hosts").write_text(self._networks.hosts(worker))
        (worker.folder / "etc/apt.conf").write_text(self._networks.apt_settings())
        (worker.folder / "etc/layout").write_text("".join(f"{line}\n" for line in self._layout()))
        (worker.folder / "etc/tpu-env").write_text(tpu_env(worker))
        (worker.folder / "etc/disks").write_text("".join(_disks(worker)))

    def _layout(self) -> Iterator[str]:
        """Yield the lines that hide this machine's folders and show those of inherited settings."""
        replaced = [Path(name) for name in _REPLACED]
        for folder in self._hidden:
            if not any(folder.is_relative_to(own) for own in replaced):
                yield f"hide\t{folder}"
        if self._is_hidden(Path(sys.base_prefix)):
            yield f"show\t{sys.base_prefix}"
        for name, value in self._inherited.items():
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


def _disks(worker: EmulatedWorker) -> Iterator[str]:
    """Make the files for data disks; yield a line with mode and path for each."""
    folder = common_folder(worker, "disks")
    for source, mode in worker.facts.data_disks:
        file = folder / source.replace("/", "_")
        if not file.exists():
            with file.open("wb") as empty:
                empty.truncate(_DISK_BYTES)
        yield f"{mode}\t{file}\n"


def hidden_folders(home: Path, emulator: Path) -> tuple[Path, ...]:
    """Return the private folders of this machine, which workers must not see."""
    folders = [*(Path(name) for name in (*_REPLACED, "/var/tmp")), home, emulator]
    return tuple(dict.fromkeys(folder.resolve() for folder in folders))
