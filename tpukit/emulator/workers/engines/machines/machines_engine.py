"""The engine for Linux with root that boots Debian with systemd on every worker."""

from __future__ import annotations

import hashlib
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
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
    home_folder,
    install_programs,
    make_folders,
    tpu_env,
)
from tpukit.emulator.workers.engines.machines.control_groups import remove_groups
from tpukit.emulator.workers.engines.machines.machine import BootedMachine, boot
from tpukit.emulator.workers.engines.namespaces.namespace import entering
from tpukit.emulator.workers.engines.namespaces.networked_engine import (
    METADATA,
    NetworkedEngine,
    connect,
)
from tpukit.emulator.workers.worker_folders import remove

_FOLDERS = ("bin", "etc", "home", "upper", "work", "root")
_INSTALLED = "opt/emulated-worker"
#: Seconds for a machine to power off before it is killed.
_SHUTDOWN_SECONDS = 5.0


class MachinesEngine(NetworkedEngine[BootedMachine]):
    """Boots a machine for each worker, and boots it again after a reboot.

    `root` is the root file system for every machine, built by `ensure_root`. `identity` marks this
    emulator's control groups.
    """

    name = "machines"
    limits: tuple[str, ...] = (
        *NetworkedEngine.limits,
        "accelerator device files exist but cannot be used; there are no data disks",
        "faults inside a session (apt-lock, disk-full, late-key, hostile-output and those of"
        " devices) have no effect: lock apt and fill the disk instead",
    )

    def __init__(
        self,
        inherited: Mapping[str, str],
        root: Path,
        identity: str,
        api_port: Callable[[], int] = int,
    ) -> None:
        super().__init__(inherited, api_port)
        self._root = root
        self._groups = f"tpukit-{identity[:16]}-"
        remove_groups(self._groups)  # groups of an earlier emulator that was killed

    def start(self, worker: EmulatedWorker) -> WorkerSockets | None:
        if self._is_running(worker):
            return None
        remove(worker.folder / "work")  # the kernel's notes about the last mount
        remove(worker.folder / "files")
        make_folders(worker, _FOLDERS)
        (worker.folder / "upper").chmod(0o755)  # the root of every process inside
        install_programs(worker, ("machine", "accounts"), Path("/usr/bin/python3"))
        options = self._write_files(worker)
        network, sockets = self._networks.make(worker, serve_ssh=False)
        groups = f"{self._groups}{worker.record.folder_name}"
        self._add(worker, boot(worker, network, self._root, groups, options))
        return sockets

    def open_ssh(self, worker: EmulatedWorker, keys: Sequence[tuple[str, str]]) -> socket.socket:
        machine = self._started(worker)
        machine.admit(keys)
        return connect(machine.network, worker.address, 22)

    def files(self, worker: EmulatedWorker, user: str) -> SftpFolders:
        return SftpFolders(self._home(worker, user), self._started(worker).root)

    def program(self, worker: EmulatedWorker, login: Login) -> WorkerProgram:
        machine = self._started(worker)
        home = self._home(worker, login.user)
        environment = {
            **self._environment(worker),
            **login.environment(home),
            "PATH": SYSTEM_PATH,
            processes.MARKER: worker.marker,
        }
        words = ("runuser", "--user", login.user, "--", "env", f"--chdir={home}", *login.words)
        terminals = machine.root / "dev/pts"
        return WorkerProgram(words, environment, Path("/"), entering(machine.leader), terminals)

    def end(self, marker: str) -> None:
        machines = self._take(marker)
        for machine in machines:
            machine.press_power_button()
        give_up_at = time.monotonic() + _SHUTDOWN_SECONDS
        for machine in machines:
            machine.end(give_up_at)

    def _home(self, worker: EmulatedWorker, user: str) -> Path:
        return Path("/home", home_folder(worker, user).name) if user != "root" else Path("/root")

    def _environment(self, worker: EmulatedWorker) -> dict[str, str]:
        settings, _ = self._settings()
        return {
            **settings,
            **self._networks.variables(worker),
            **worker.facts.environment(worker.index, METADATA),
            CHIPS: f"/{_INSTALLED}/bin/{CHIPS_HOOK}",
        }

    def _write_files(self, worker: EmulatedWorker) -> list[str]:
        """Write the files to copy to the worker's disk at boot; return systemd-nspawn's options."""
        files = worker.folder / "files"
        shutil.copytree(Path(__file__).parent / "system", files)
        (files / "usr/bin/google_metadata_script_runner").chmod(0o755)
        own = files / _INSTALLED / "bin"
        own.mkdir(parents=True)
        for name in (WITH_CHIPS, CHIPS_HOOK, "accounts"):
            shutil.copyfile(worker.folder / "bin" / name, own / name)
            (own / name).chmod(0o755)
        copied, folders = self._settings()
        for name, value in copied.items():
            if Path(value).is_relative_to(f"/{_INSTALLED}"):
                _write(files, value, Path(self._inherited[name]).read_text())
        record = worker.record
        identity = hashlib.sha256(worker.marker.encode()).hexdigest()[:32]
        chips = worker.facts.accelerator.chips_per_worker if worker.facts.devices else 0
        environment = "".join(
            f"{name}={value}\n" for name, value in self._environment(worker).items()
        )
        for path, text in {
            "etc/hostname": f"{record.hostname}\n",
            "etc/hosts": self._networks.hosts(worker),
            "etc/machine-id": f"{identity}\n",
            "etc/environment": environment,
            "etc/apt/apt.conf.d/99emulated-worker": self._networks.apt_settings(),
            "etc/ssh/ssh_host_ed25519_key.pub": f"{record.host_public_key}\n",
            "home/tpu-runtime/tpu-env": tpu_env(worker),
            f"{_INSTALLED}/chips": "".join(f"accel{chip}\n" for chip in range(chips)),
        }.items():
            _write(files, path, text)
        _write(files, "etc/ssh/ssh_host_ed25519_key", record.host_private_key, 0o600)
        return [f"--bind-ro={folder}" for folder in folders]

    def _settings(self) -> tuple[dict[str, str], list[Path]]:
        """Return the inherited variables for a machine, and the folders that they name.

        Files are copied, so that every user of the worker can read them. Caches are left out.
        """
        variables, folders = {}, []
        for name, value in self._inherited.items():
            path = Path(value)
            if name.endswith("_CACHE_DIR") or (path.is_absolute() and not path.exists()):
                continue
            if path.is_absolute() and path.is_file():
                value = f"/{_INSTALLED}/settings/{name}"
            elif path.is_absolute():
                folders.append(path)
            variables[name] = value
        return variables, folders


def _write(files: Path, path: str, text: str, mode: int = 0o644) -> None:
    target = files / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)
