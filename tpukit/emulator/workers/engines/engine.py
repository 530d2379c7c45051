"""The interface of all engines, which run the commands of emulated workers.

An engine turns a login into a program to start. It makes nothing for a worker before its first
login: an unused worker needs only a listening socket.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from tpukit.emulator.workers.slice_facts import SliceFacts
from tpukit.emulator.workers.worker_host import WorkerRecord
from tpukit.errors import BadInput
from tpukit.text import one_line

SHELL = "/bin/bash"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The session's leader opens the terminal itself, so that it becomes the controlling terminal.
_ON_TERMINAL = ("/bin/sh", "-c", 'exec "$@" <>"$0" >&0 2>&0')
#: The program that starts every command, and the code that it makes the worker's Pythons run.
WITH_CHIPS, CHIPS_HOOK = "with-chips", "with-chips-hook"
#: This variable names the path of `CHIPS_HOOK`.
CHIPS = "TPUKIT_EMULATED_CHIPS"
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class EmulatedWorker:
    """One worker, for its servers and its engine."""

    record: WorkerRecord
    facts: SliceFacts
    folder: Path  #: all files of the worker: homes, temporary files, its programs
    marker: str  #: <emulator>/<node>/<index>

    @property
    def index(self) -> int:
        return self.record.index

    @property
    def address(self) -> str:
        return self.record.address


@dataclass(frozen=True)
class Login:
    """A request of an authenticated user for a shell or a command."""

    user: str
    command: str | None  #: None for an interactive shell
    connection: tuple[str, int, str, int]  #: client address and port, worker address and port
    terminal_type: str | None = None  #: None without a terminal
    language: Mapping[str, str] = field(default_factory=dict)  #: LANG and LC_* of the client

    @property
    def words(self) -> tuple[str, ...]:
        """The shell's command line, like sshd's: `-l` without a command, `-c` with one."""
        return (SHELL, "-l") if self.command is None else (SHELL, "-c", self.command)

    def environment(self, home: Path) -> dict[str, str]:
        """Return the variables that sshd and login set."""
        client, client_port, address, port = self.connection
        terminal = {} if self.terminal_type is None else {"TERM": self.terminal_type}
        return {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            **self.language,
            "LOGNAME": self.user,
            "SHELL": SHELL,
            "SSH_CLIENT": f"{client} {client_port} {port}",
            "SSH_CONNECTION": f"{client} {client_port} {address} {port}",
            "USER": self.user,
            **terminal,
        }


@dataclass(frozen=True)
class WorkerProgram:
    """A process to start as the leader of a new session.

    `enter` is a command that starts `arguments` inside the worker; its child is then the leader of
    the session.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    enter: tuple[str, ...] = ()
    terminals: Path | None = None  #: the worker's devpts file system, if it has its own

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.enter, *self.arguments)

    def on_terminal(self, name: str) -> WorkerProgram:
        """Return the program with the terminal device `name` as its controlling terminal."""
        arguments = (*_ON_TERMINAL, name, *self.arguments)
        return replace(self, arguments=arguments, environment={**self.environment, "SSH_TTY": name})


@dataclass(frozen=True)
class WorkerSockets:
    """The sockets for the servers of a started worker."""

    metadata: socket.socket
    ssh: socket.socket | None = None  #: for its neighbours, if it has its own network
    proxy: socket.socket | None = None  #: for an HTTP proxy, if it has its own network
    upstream: tuple[str, int] | None = None  #: the proxy that this one forwards to
    api: socket.socket | None = None  #: on 127.0.0.1 and the port of the emulator's own API


@dataclass(frozen=True)
class SftpFolders:
    """The folders that SFTP serves."""

    home: Path  #: the path of the home folder on the worker
    root: Path | None = None  #: this process's path of the worker's root, if it has its own


class Engine(Protocol):
    """A way to run workers on this machine."""

    name: str
    limits: tuple[str, ...]  #: differences from a TPU VM

    def start(self, worker: EmulatedWorker) -> WorkerSockets | None:
        """Make everything that a login needs, or return None if the worker runs. This blocks."""
        ...

    def files(self, worker: EmulatedWorker, user: str) -> SftpFolders:
        """Return the folders for SFTP; raise `BadInput` for an invalid user name."""
        ...

    def program(self, worker: EmulatedWorker, login: Login) -> WorkerProgram:
        """Return the program for a login; raise `BadInput` for an invalid user name."""
        ...

    def connect(self, worker: EmulatedWorker, host: str, port: int) -> socket.socket:
        """Return a connection from the worker to `host`. This blocks."""
        ...

    def end(self, marker: str) -> None:
        """End all processes of workers with a marker that begins with `marker`."""
        ...

    def close(self) -> None:
        """Release the engine's own resources."""
        ...


@runtime_checkable
class BootingEngine(Engine, Protocol):
    """An engine with workers that boot: they have their own accounts, services and SSH server."""

    def open_ssh(self, worker: EmulatedWorker, keys: Sequence[tuple[str, str]]) -> socket.socket:
        """Return a connection to the worker's SSH server, which then admits only these keys.

        This blocks.
        """
        ...


def make_folders(worker: EmulatedWorker, names: tuple[str, ...]) -> None:
    """Make the worker's folder and subfolders, without access for other accounts."""
    for folder in (worker.folder.parent, worker.folder, *(worker.folder / name for name in names)):
        folder.mkdir(mode=0o700, exist_ok=True)


def common_folder(worker: EmulatedWorker, name: str) -> Path:
    """Make and return a folder that all workers of this emulator share."""
    folder = worker.folder.parent / name
    folder.mkdir(mode=0o755, exist_ok=True)
    return folder


def install_programs(worker: EmulatedWorker, names: tuple[str, ...], interpreter: Path) -> None:
    """Install stand-ins for programs in the worker's `bin`, and their data in `etc`."""
    own = worker.folder / "bin"
    for name in (*names, WITH_CHIPS, CHIPS_HOOK):
        install(name, own / name, 0o700)
    for link, target in ((f"python3.{sys.version_info.minor}", "python3"), ("pip", "pip3")):
        if not (own / link).is_symlink():
            (own / link).symlink_to(target)
    notes = {
        "node": worker.facts.node,
        "hostname": worker.record.hostname,
        "fqdn": worker.facts.full_hostname(worker.index),
        "address": worker.address,
        "python3": str(interpreter),
    }
    for name, line in notes.items():
        (worker.folder / "etc" / name).write_text(line + "\n")


def tpu_env(worker: EmulatedWorker) -> str:
    """Return the settings of Google's runtime, /home/tpu-runtime/tpu-env of a TPU VM."""
    return "".join(f'{name}="{value}"\n' for name, value in worker.facts.tpu_env(worker.index))


def install(name: str, target: Path, mode: int) -> None:
    """Copy a stand-in from the package to `target`."""
    shutil.copyfile(Path(__file__).parent / "standins" / name, target)
    target.chmod(mode)


def home_folder(worker: EmulatedWorker, user: str) -> Path:
    """Return the path of the user's home folder; raise `BadInput` for an invalid name."""
    if not _USER.fullmatch(user):
        raise BadInput(f"not a user name: {one_line(user)}")
    return worker.folder / "home" / user


def base_interpreter() -> Path:
    """Return the Python that this process's virtual environment is based on."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
