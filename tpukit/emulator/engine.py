"""What an emulated worker runs its commands in.

An engine turns a login into a program to start. The portable engine needs no privilege: commands
are processes of the emulator's own account, with the worker's home, names and environment.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Protocol

from tpukit.emulator import processes
from tpukit.emulator.facts import SliceFacts
from tpukit.emulator.workers import WorkerRecord
from tpukit.errors import BadInput
from tpukit.text import one_line

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL = "/bin/bash"
#: A session leader that opens a terminal without one of its own gets it as controlling terminal.
_ON_TERMINAL = ("/bin/sh", "-c", 'exec "$@" <>"$0" >&0 2>&0')
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
    """What a user who was let in asks for."""

    user: str
    command: str | None  #: None for an interactive shell
    connection: tuple[str, int, str, int]  #: client address and port, worker address and port
    terminal_type: str | None = None  #: None without a terminal
    language: Mapping[str, str] = field(default_factory=dict)  #: LANG and LC_* of the client


@dataclass(frozen=True)
class Program:
    """A process to start as the leader of a session of its own."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path

    def on_terminal(self, name: str) -> Program:
        """Return the program with the terminal device `name` as its controlling terminal."""
        arguments = (*_ON_TERMINAL, name, *self.arguments)
        return Program(arguments, {**self.environment, "SSH_TTY": name}, self.directory)


class Engine(Protocol):
    """A way to run workers on this machine."""

    name: str

    def prepare(self, worker: EmulatedWorker) -> None:
        """Make what the worker has before anybody logs in; repeating it changes nothing."""
        ...

    def home(self, worker: EmulatedWorker, user: str) -> Path:
        """Return the user's home folder, made at the first login."""
        ...

    def program(self, worker: EmulatedWorker, login: Login, metadata_address: str) -> Program:
        """Return the program that a login starts."""
        ...

    def end(self, marker: str) -> None:
        """End every process of the workers whose markers begin with `marker`."""
        ...

    def folders(self, directory: Path, node: str) -> list[Path]:
        """Return the folders of a node's workers among all those below `directory`."""
        ...

    def remove(self, folder: Path) -> None:
        """Remove a worker's files."""
        ...


class PortableEngine:
    """Runs commands as ordinary processes of this account, on any Linux or macOS machine.

    Workers share the machine's files, process list and installed packages. `site` is what passes
    from the emulator's environment, `interpreter` the Python that a worker has as `python3`.
    """

    name = "portable"

    def __init__(self, site: Mapping[str, str], interpreter: Path) -> None:
        self._site = dict(site)
        self._interpreter = interpreter

    def prepare(self, worker: EmulatedWorker) -> None:
        own = worker.folder / "bin"
        parts = (worker.folder / name for name in ("home", "tmp", "etc"))
        for folder in (worker.folder.parent, worker.folder, own, *parts):
            folder.mkdir(mode=0o700, exist_ok=True)
        for name in ("hostname", "sudo", "python3", "pip3"):
            _install(name, own / name, 0o700)
        _link(own / f"python3.{sys.version_info.minor}", "python3")
        _link(own / "pip", "pip3")
        notes = {
            "node": worker.facts.node,
            "hostname": worker.record.hostname,
            "fqdn": worker.facts.full_hostname(worker.index),
            "address": worker.address,
            "python3": str(self._interpreter),
        }
        for name, line in notes.items():
            (worker.folder / "etc" / name).write_text(line + "\n")

    def home(self, worker: EmulatedWorker, user: str) -> Path:
        if not _USER.fullmatch(user):
            raise BadInput(f"not a user name: {one_line(user)}")
        home = worker.folder / "home" / user
        if not home.exists():
            home.mkdir(mode=0o700)
            _install("profile", home / ".profile", 0o600)
        return home

    def program(self, worker: EmulatedWorker, login: Login, metadata_address: str) -> Program:
        home = self.home(worker, login.user)
        client, client_port, address, port = login.connection
        environment = {
            **self._site,
            **worker.facts.environment(worker.index, metadata_address),
            "HOME": str(home),
            "LANG": "C.UTF-8",
            **login.language,
            "LOGNAME": login.user,
            "PATH": f"{worker.folder / 'bin'}:{_SYSTEM_PATH}",
            "SHELL": _SHELL,
            "SSH_CLIENT": f"{client} {client_port} {port}",
            "SSH_CONNECTION": f"{client} {client_port} {address} {port}",
            "TMPDIR": str(worker.folder / "tmp"),
            "USER": login.user,
            processes.MARKER: worker.marker,
        }
        if login.terminal_type is not None:
            environment["TERM"] = login.terminal_type
        # As sshd does: a login shell without a command, `shell -c` with one.
        words = (_SHELL, "-l") if login.command is None else (_SHELL, "-c", login.command)
        return Program(words, environment, home)

    def end(self, marker: str) -> None:
        processes.end(lambda: processes.marked(marker))

    def folders(self, directory: Path, node: str) -> list[Path]:
        notes = directory.glob("*/etc/node")
        return [note.parent.parent for note in notes if note.read_text().strip() == node]

    def remove(self, folder: Path) -> None:
        # A user's program may have left folders that forbid their own removal.
        for parent, names, _ in os.walk(folder):
            for name in names:
                child = Path(parent, name)
                if not child.is_symlink():
                    child.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


def base_interpreter() -> Path:
    """Return the Python beneath the virtual environment that runs this process."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))


def _install(name: str, target: Path, mode: int) -> None:
    with as_file(files("tpukit.emulator") / "standins" / name) as source:
        shutil.copyfile(source, target)
    target.chmod(mode)


def _link(link: Path, target: str) -> None:
    if not link.is_symlink():
        link.symlink_to(target)
