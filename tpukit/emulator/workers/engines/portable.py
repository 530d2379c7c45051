"""The engine that works everywhere: a worker's commands are processes of this account."""

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
_ACCOUNT = (
    "sudo changes no user: no system package can be installed that this account cannot install",
)
_ROOT = (
    "the emulator runs as root, so every command on a worker is root on this machine, with or"
    " without sudo: it can install here, and destroy anything",
)
_ALWAYS = (
    "workers share the machine's files, packages, process list and network: what a command"
    " removes there it removes here",
    "the metadata server is not on 169.254.169.254: GCE_METADATA_IP names it",
    "no accelerator device files",
)


class PortableEngine:
    """Needs no privilege, on any Linux or macOS machine.

    `inherited` are variables of the emulator's environment, `interpreter` is a worker's `python3`;
    `is_root` says that this account is root.
    """

    name = "portable"

    def __init__(
        self, inherited: Mapping[str, str], interpreter: Path, is_root: bool = False
    ) -> None:
        self.limits: tuple[str, ...] = (*(_ROOT if is_root else _ACCOUNT), *_ALWAYS)
        self._inherited = dict(inherited)
        self._interpreter = interpreter
        self._metadata: dict[str, str] = {}  #: marker: host:port
        self._states: dict[str, Path] = {}  #: marker: what systemctl answers there

    def start(self, worker: EmulatedWorker) -> WorkerSockets | None:
        if worker.marker in self._metadata:
            return None
        make_folders(worker, ("bin", "home", "tmp", "etc"))
        install_programs(worker, _STAND_INS, self._interpreter)
        self._states[worker.marker] = worker.folder / "etc/system-state"
        self._states[worker.marker].write_text("offline\n")  # for systemd: it is not what runs here
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
            # Its servers are found by their sockets: one of this machine, or of another worker,
            # would run commands elsewhere, and outlive the worker.
            **({"TMUX_TMPDIR": sockets} if len(sockets) <= _LONGEST_SOCKETS else {}),
            processes.MARKER: worker.marker,
        }
        words = (str(worker.folder / "bin" / WITH_CHIPS), *login.words)
        return WorkerProgram(words, {**environment, **self._direct(worker)}, home)

    def _direct(self, worker: EmulatedWorker) -> dict[str, str]:
        """Return the variables that keep what a worker asks its metadata server from a proxy."""
        if not any(name.lower().endswith("_proxy") for name in self._inherited):
            return {}
        names = ("no_proxy", "NO_PROXY")
        before = next((self._inherited[name] for name in names if self._inherited.get(name)), "")
        return dict.fromkeys(names, ",".join(filter(None, (before, worker.address))))

    def connect(self, worker: EmulatedWorker, host: str, port: int) -> socket.socket:
        # From its own address, by which the firewall rules of others judge it.
        return socket.create_connection((host, port), _SECONDS, (worker.address, 0))

    def end(self, marker: str) -> None:
        ended = [each for each in list(self._metadata) if each.startswith(marker)]
        for each in ended:  # as systemd does, before anything else hears of it
            with contextlib.suppress(OSError):  # a worker's programs may have removed the folder
                self._states[each].write_text("stopping\n")
        processes.end(lambda: processes.marked(marker))
        for each in ended:
            del self._metadata[each], self._states[each]

    def close(self) -> None:
        """Nothing is held."""

    def _home(self, worker: EmulatedWorker, user: str) -> Path:
        home = home_folder(worker, user)
        if not home.exists():
            home.mkdir(mode=0o700)
            install("profile", home / ".profile", 0o600)
        return home
