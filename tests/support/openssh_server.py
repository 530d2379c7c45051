"""OpenSSH's own server, as it runs on a TPU VM, for one worker: an address, a host key, a home."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import socket
import subprocess
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncssh
import psutil
import pytest

from support.login_account import Account
from support.passed_tests import note_choice
from support.processes import eventually
from tpukit.emulator.workers.addresses import free_port
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.target import Target

#: sshd starts a session in the account's home, not in the worker's; the rest is as without it.
IN_ITS_HOME = (
    "line=$SSH_ORIGINAL_COMMAND; unset SSH_ORIGINAL_COMMAND; "
    'cd "$HOME" && if [ "$line" ]; then eval "$line"; else exec "$SHELL"; fi'
)


def find_sshd() -> str | None:
    """Return the OpenSSH server's path, if it is here; SSHD names one that is not installed."""
    beside = next((path for path in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if _is(path)), None)
    return os.environ.get("SSHD") or shutil.which("sshd") or beside


def finds_sshd(request: pytest.FixtureRequest) -> bool:
    """Return True if OpenSSH's server is here: then the test's workers are such servers."""
    note_choice(request)
    return find_sshd() is not None


def sshd_path() -> str:
    """Return the OpenSSH server's path, or skip the test."""
    found = find_sshd()
    if found is None:
        pytest.skip("OpenSSH's server is not installed: what it does with tpukit is NOT checked")
    if os.geteuid() == 0:  # where there is no systemd, nobody else makes it
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    return found


def new_key() -> tuple[str, str]:
    """Return a new ed25519 key: the private file's text and the public line."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    return key.export_private_key().decode(), key.export_public_key().decode().strip()


def start_sshd(
    address: str,
    port: int,
    log: Path,
    options: dict[str, object],
    before: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a server, and return when it greets.

    `options` are beside those that all have; `before` are words of a program that becomes it.
    """
    common = {
        "ListenAddress": address,
        "Port": port,
        "StrictModes": "no",  # the folder's parents may be open to others
        "UsePAM": "no",
        "PidFile": "none",
        "PermitRootLogin": "prohibit-password",
        "PermitUserRC": "no",
    }
    words = [
        word for name, value in (options | common).items() for word in ("-o", f"{name}={value}")
    ]
    with log.open("ab") as file:
        server = subprocess.Popen(
            [*before, sshd_path(), "-D", "-e", "-f", "none", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    eventually(lambda: server.poll() is not None or _greets(address, port))
    assert server.poll() is None, log.read_text()
    return server


def end_sshd(server: subprocess.Popen[bytes]) -> None:
    """End a server and its connections, which have processes of their own."""
    with contextlib.suppress(psutil.Error):
        psutil.Process(server.pid).suspend()  # it begins no further one
        end_connections(server)
    server.kill()
    server.wait()


def end_connections(server: subprocess.Popen[bytes]) -> None:
    """Break a server's connections; what commands are there goes on."""
    for connection in _connections(server):
        with contextlib.suppress(psutil.Error):
            connection.kill()


@contextmanager
def stalled(server: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let a server and its connections stand still; what commands are there goes on."""
    stopped: list[psutil.Process] = []
    # One that was listed may have had a child before it stood still.
    while new := [
        p for p in (psutil.Process(server.pid), *_connections(server)) if p not in stopped
    ]:
        for each in new:
            with contextlib.suppress(psutil.NoSuchProcess):  # a connection may end meanwhile
                each.suspend()
        stopped += new
    assert server.poll() is None
    try:
        yield
    finally:
        for each in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()


def _connections(server: subprocess.Popen[bytes]) -> list[psutil.Process]:
    children = psutil.Process(server.pid).children(recursive=True)
    return [child for child in children if _is_server(child)]


class UbuntuServer:
    """One worker that an ordinary user logs in to, with bash; it needs no API.

    It does what `support.ssh_server.Server` does, but for what only a server of ours can: it loses
    no answers at will. `path` and `variables` are what a command finds when .bashrc has spoken.
    """

    # A test that asks for a fault of the other server is wrong, not right for nothing.
    __slots__ = (
        *("_before", "_directory", "_sshd", "account", "address", "home", "port", "public"),
        "variables",
    )

    def __init__(self, directory: Path, account: Account, before: Sequence[str] = ()) -> None:
        self.account = account
        self._before = before
        self.home = directory / "home"
        self._directory = directory
        account.furnish(self.home)
        self.variables = _Exported(directory / "variables")
        private, public = new_key()
        self.public = " ".join(public.split()[:2])
        (directory / "host-key").touch(0o600)
        (directory / "host-key").write_text(private)
        self.address = f"127.{random.randrange(80, 250)}.{random.randrange(1, 250)}.1"
        self.port = free_port(self.address)
        self._sshd = self._started()

    @property
    def path(self) -> str:
        return self.variables.get("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")

    @path.setter
    def path(self, path: str) -> None:
        self.variables["PATH"] = path

    @property
    def commands(self) -> list[str]:
        """What clients have asked for."""
        file = self._directory / "commands"
        return file.read_text().split("\0")[:-1] if file.exists() else []

    def target(self, *host_keys: str, user: str = "") -> Target:
        keys = host_keys or (self.public,)
        user = user or self.account.name
        return Target("demo worker 0", 0, self.address, self.port, user, keys)

    def accept(self, key: KeyPair) -> UbuntuServer:
        with (self._directory / "authorized_keys").open("a") as file:
            file.write(f"{key.public}\n")
        return self

    def wait_until(self, found: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait for something that a process on the worker brings about."""
        eventually(found, seconds)

    def cut(self) -> None:
        """Break every connection, as a router that forgot them would."""
        end_connections(self._sshd)

    def stalled(self) -> AbstractContextManager[None]:
        """Let the server and its connections stand still; the commands go on."""
        return stalled(self._sshd)

    def restart(self) -> None:
        """End the server with its connections, and start it again."""
        end_sshd(self._sshd)
        self._sshd = self._started()

    def own(self, path: Path) -> Path:
        """Let a file or folder that the test has made belong to the user, with what is in it."""
        for each in (path, *path.rglob("*")) if self.account.made else ():
            shutil.chown(each, self.account.name)
        return path

    def processes(self) -> list[psutil.Process]:
        """Return what runs on the worker, but for what knows nothing of its home."""
        return [process for process in psutil.process_iter() if home_of(process) == str(self.home)]

    def close(self) -> None:
        """End the server, and what its commands have left behind."""
        end_sshd(self._sshd)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        remember = f"printf '%s\\0' \"$SSH_ORIGINAL_COMMAND\" >>{self._directory}/commands; "
        (self._directory / "commands").touch()
        (self._directory / "commands").chmod(0o666)
        return start_sshd(
            self.address,
            self.port,
            self._directory / "log",
            {
                "HostKey": self._directory / "host-key",
                "AuthorizedKeysFile": self._directory / "authorized_keys",
                "LogLevel": "ERROR",  # debugging would come out on commands' stderr
                "SetEnv": f"HOME={self.home}",
                "ForceCommand": f"{remember}. {self._directory}/variables; {IN_ITS_HOME}",
            },
            self._before,
        )


@contextmanager
def ubuntu_server(
    account: Account, key: KeyPair, before: Sequence[str] = ()
) -> Iterator[UbuntuServer]:
    """Run one such worker that admits a key; its folder is open to it, as pytest's own are not.

    `before` are words of a program that becomes the server.
    """
    with TemporaryDirectory(prefix="tpukit-ubuntu-") as folder:
        Path(folder).chmod(0o755)
        server = UbuntuServer(Path(folder), account, before).accept(key)
        try:
            yield server
        finally:
            server.close()


def home_of(process: psutil.Process) -> str:
    """Return a living process's home, or nothing."""
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        return process.environ().get("HOME", "") if alive else ""
    except (psutil.Error, OSError):
        return ""


class _Exported(UserDict[str, str]):
    """Variables in a file that a shell reads."""

    def __init__(self, file: Path) -> None:
        self._file = file
        super().__init__()
        file.touch()

    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name, value)
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in self.data.items()]
        self._file.write_text("".join(lines))

    def __ior__(self, others: Any) -> _Exported:
        self.update(others)
        return self


def _is_server(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("sshd")
    except psutil.Error:
        return False


def _greets(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), 5) as found:
        return found.recv(4) == b"SSH-"
    return False


def _is(path: str) -> bool:
    return os.access(path, os.X_OK)
