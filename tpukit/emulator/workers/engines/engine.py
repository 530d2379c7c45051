"""What an emulated worker runs its commands in: the interface of all engines.

An engine turns a login into a program to start. Nothing is made for a worker before its first
login: one that nobody talks to costs a listening socket.
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
#: A session leader that opens a terminal without one of its own gets it as controlling terminal.
_ON_TERMINAL = ("/bin/sh", "-c", 'exec "$@" <>"$0" >&0 2>&0')
#: What every command starts through, and what it has the worker's Pythons read.
WITH_CHIPS, CHIPS_HOOK = "with-chips", "with-chips-hook"
#: The variable that names the latter.
CHIPS = "TPUKIT_EMULATED_CHIPS"
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class EmulatedWorker:
    """One worker as its servers and its engine see it."""

    record: WorkerRecord
    facts: SliceFacts
    folder: Path  #: all that the worker keeps: homes, temporary files, its own programs
    marker: str  #: <emulator>/<node>/<index>

    @property
    def index(self) -> int:
        return self.record.index

    @property
    def address(self) -> str:
        return self.record.address


@dataclass(frozen=True)
class Login:
    """What an authenticated user asks for."""

    user: str
    command: str | None  #: None for an interactive shell
    connection: tuple[str, int, str, int]  #: client address and port, worker address and port
    terminal_type: str | None = None  #: None without a terminal
    language: Mapping[str, str] = field(default_factory=dict)  #: LANG and LC_* of the client

    @property
    def words(self) -> tuple[str, ...]:
        """As sshd does: a login shell without a command, `shell -c` with one."""
        return (SHELL, "-l") if self.command is None else (SHELL, "-c", self.command)

    def environment(self, home: Path) -> dict[str, str]:
        """Return what sshd and login set."""
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
    """A process to start as the leader of a session of its own.

    `enter` is a command that starts `arguments` inside the worker; the leader of the session is
    then the child of that command.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    enter: tuple[str, ...] = ()
    terminals: Path | None = None  #: a devpts file system, where it is not this process's

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.enter, *self.arguments)

    def on_terminal(self, name: str) -> WorkerProgram:
        """Return the program with the terminal device `name` as its controlling terminal."""
        arguments = (*_ON_TERMINAL, name, *self.arguments)
        return replace(self, arguments=arguments, environment={**self.environment, "SSH_TTY": name})


@dataclass(frozen=True)
class WorkerSockets:
    """Sockets on which a started worker expects its servers."""

    metadata: socket.socket
    ssh: socket.socket | None = None  #: for its neighbours, where it has a network of its own
    proxy: socket.socket | None = None  #: an HTTP proxy, where it has no other way out
    upstream: tuple[str, int] | None = None  #: the proxy that this one forwards to
    api: socket.socket | None = None  #: on 127.0.0.1 and the port of the emulator's own API


@dataclass(frozen=True)
class SftpFolders:
    """What SFTP serves."""

    home: Path  #: as the worker's programs name it
    root: Path | None = None  #: where the worker's files are for this process, if not where it is


class Engine(Protocol):
    """A way to run workers on this machine."""

    name: str
    limits: tuple[str, ...]  #: what a worker of this engine lacks beside a TPU VM

    def start(self, worker: EmulatedWorker) -> WorkerSockets | None:
        """Make what a login needs; return nothing for a worker that runs. Blocks: not on a loop."""
        ...

    def files(self, worker: EmulatedWorker, user: str) -> SftpFolders:
        """Return what the user sees over SFTP; raise `BadInput` for an impossible user name."""
        ...

    def program(self, worker: EmulatedWorker, login: Login) -> WorkerProgram:
        """Return the program that a login starts; raise `BadInput` as `files` does."""
        ...

    def connect(self, worker: EmulatedWorker, host: str, port: int) -> socket.socket:
        """Return a connection to what the worker itself calls `host`. Blocks: not on a loop."""
        ...

    def end(self, marker: str) -> None:
        """End every process of the workers whose markers begin with `marker`."""
        ...

    def close(self) -> None:
        """Give back what the engine itself has taken."""
        ...


@runtime_checkable
class BootingEngine(Engine, Protocol):
    """An engine whose workers boot: they have accounts, an SSH server and services of their own."""

    def open_ssh(self, worker: EmulatedWorker, keys: Sequence[tuple[str, str]]) -> socket.socket:
        """Return a connection to the worker's SSH server, which admits these users' keys alone.

        Blocks: not on a loop.
        """
        ...


def make_folders(worker: EmulatedWorker, names: tuple[str, ...]) -> None:
    """Make the worker's folder, with folders in it, closed to other accounts."""
    for folder in (worker.folder.parent, worker.folder, *(worker.folder / name for name in names)):
        folder.mkdir(mode=0o700, exist_ok=True)


def common_folder(worker: EmulatedWorker, name: str) -> Path:
    """Return a folder that all workers of this emulator have in common; it is made."""
    folder = worker.folder.parent / name
    folder.mkdir(mode=0o755, exist_ok=True)
    return folder


def install_programs(worker: EmulatedWorker, names: tuple[str, ...], interpreter: Path) -> None:
    """Put stand-ins for programs into the worker's `bin`, and what they print into `etc`."""
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
    """Return the settings of Google's own runtime, /home/tpu-runtime/tpu-env of a TPU VM."""
    return "".join(f'{name}="{value}"\n' for name, value in worker.facts.tpu_env(worker.index))


def install(name: str, target: Path, mode: int) -> None:
    """Copy a file of the package."""
    shutil.copyfile(Path(__file__).parent / "standins" / name, target)
    target.chmod(mode)


def home_folder(worker: EmulatedWorker, user: str) -> Path:
    """Return where the user's home folder is kept; raise `BadInput` for an impossible name."""
    if not _USER.fullmatch(user):
        raise BadInput(f"not a user name: {one_line(user)}")
    return worker.folder / "home" / user


def base_interpreter() -> Path:
    """Return the Python beneath the virtual environment that runs this process."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
