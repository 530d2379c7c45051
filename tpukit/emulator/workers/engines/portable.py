"""The engine for every machine: a worker's commands are processes of this account."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path

from tpukit.emulator.workers import processes
from tpukit.emulator.workers.addresses import listening
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
    install,
    install_programs,
    make_folders,
)

_SECONDS = 10.0
#: unix(7): a socket's path has at most 107 bytes; tmux adds its folder and a name.
_LONGEST_SOCKETS = 107 - len("/tmux-4294967295/default")
_STAND_INS = ("hostname", "uname", "journalctl", "sudo", "systemctl", "python3", "pip3")
_ACCOUNT = ("sudo does not change the user, so it cannot install system packages",)
_ROOT = (
    "the emulator runs as root, so every command on a worker is root on this machine, with or"
    " without sudo: it can install here, and destroy anything",
)
_ALWAYS = (
    "workers share this machine's files, packages, process list and network: a command that"
    " removes a file there removes it here",
    "the metadata server is not on 169.254.169.254: GCE_METADATA_IP names it",
    "there are no accelerator device files",
)


class PortableEngine:
    """Runs commands without special rights, on any Linux or macOS machine.

    `inherited` are the variables from the emulator's environment, `interpreter` is a worker's
    `python3`, and `is_root` is True if this account is root.
    """

    name = "portable"

    def __init__(
        self, inherited: Mapping[str, str], interpreter: Path, is_root: bool = False
    ) -> None:
        self.limits: tuple[str, ...] = (*(_ROOT if is_root else _ACCOUNT), *_ALWAYS)
        self._inherited = dict(inherited)
        self._interpreter = interpreter
        self._metadata: dict[str, str] = {}  #: marker: host:port
        self._states: dict[str, Path] = {}  #: marker: the file with systemctl's answer

    def start(self, worker: EmulatedWorker) -> WorkerSockets | None:
        if worker.marker in self._metadata:
            return None
        make_folders(worker, ("bin", "home", "tmp", "etc"))
        install_programs(worker, _STAND_INS, self._interpreter)
        self._states[worker.marker] = worker.folder / "etc/system-state"
        self._states[worker.marker].write_text("offline\n")  # systemd does not run here
        metadata = listening(worker.address, 0)
        host, port = metadata.getsockname()
        self._metadata[worker.marker] = f"{host}:{port}"
        return WorkerSockets(metadata)

    def files(self, worker: EmulatedWorker, user: str) -> SftpFolders:
        return SftpFolders(self._home(worker, user))

    def program(self, worker: EmulatedWorker, login: Login) -> WorkerProgram:
        home, sockets = self._home(worker, login.user), str(worker.folder / "tmp")
        environment = {
            **self._inherited,
            **worker.facts.environment(worker.index, self._metadata[worker.marker]),
            **login.environment(home),
            "PATH": f"{worker.folder / 'bin'}:{SYSTEM_PATH}",
            "TMPDIR": str(worker.folder / "tmp"),
            CHIPS: str(worker.folder / "bin" / CHIPS_HOOK),
            # tmux finds its server by a socket: a server of this machine or of another worker
            # would run commands there, and outlive the worker.
            **({"TMUX_TMPDIR": sockets} if len(sockets) <= _LONGEST_SOCKETS else {}),
            processes.MARKER: worker.marker,
        }
        words = (str(worker.folder / "bin" / WITH_CHIPS), *login.words)
        return WorkerProgram(words, {**environment, **self._direct(worker)}, home)

    def _direct(self, worker: EmulatedWorker) -> dict[str, str]:
        """Return the variables that keep requests to the metadata server from a proxy."""
        if not any(name.lower().endswith("_proxy") for name in self._inherited):
            return {}
        names = ("no_proxy", "NO_PROXY")
        before = next((self._inherited[name] for name in names if self._inherited.get(name)), "")
        return dict.fromkeys(names, ",".join(filter(None, (before, worker.address))))

    def connect(self, worker: EmulatedWorker, host: str, port: int) -> socket.socket:
        # From the worker's own address, to which other workers' firewall rules apply.
        return socket.create_connection((host, port), _SECONDS, (worker.address, 0))

    def end(self, marker: str) -> None:
        ended = [name for name in list(self._metadata) if name.startswith(marker)]
        for name in ended:  # like systemd, before any process gets a signal
            with contextlib.suppress(OSError):  # a worker's programs may have removed the folder
                self._states[name].write_text("stopping\n")
        processes.end(lambda: processes.marked(marker))
        for name in ended:
            del self._metadata[name], self._states[name]

    def close(self) -> None:
        """Do nothing: this engine holds no resources."""

    def _home(self, worker: EmulatedWorker, user: str) -> Path:
        home = home_folder(worker, user)
        if not home.exists():
            home.mkdir(mode=0o700)
            install("profile", home / ".profile", 0o600)
        return home
