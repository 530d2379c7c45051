"""The command line of the system's OpenSSH client, as strict as our own."""

from __future__ import annotations

import shutil
from pathlib import Path

from tpukit.remote.connection.keys import KeyPair
from tpukit.remote.connection.target import Target


def available() -> bool:
    """Tell whether the system has an OpenSSH client."""
    return shutil.which("ssh") is not None


def command(
    target: Target,
    key: KeyPair,
    known_hosts: Path,
    alias: str,
    remote: str | None = None,
    tty: bool = False,
) -> list[str]:
    """Return the words that run `remote`, or a login shell, on the worker.

    The user's own configuration, agent and known hosts play no part: only our key is offered, only
    the keys under `alias` in `known_hosts` are accepted.
    """
    given = {**options(target, key, known_hosts, alias), "BatchMode": "yes"}
    words = [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
    port, terminal = str(target.port), "-t" if tty else "-T"
    tail = [remote] if remote is not None else []
    return ["ssh", "-F", "none", *words, "-p", port, terminal, "--", target.address, *tail]


def options(target: Target, key: KeyPair, known_hosts: Path, alias: str) -> dict[str, str]:
    """Return what ssh_config(5) has to say for connections to be as strict as our own."""
    return {
        "CheckHostIP": "no",
        "ConnectTimeout": "10",
        "ControlMaster": "no",
        "ControlPath": "none",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": alias,
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "IdentityFile": _file(Path(target.identity_file or key.private_path)),
        "PreferredAuthentications": "publickey",
        "ServerAliveCountMax": "3",
        "ServerAliveInterval": "5",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "User": target.user,
        "UserKnownHostsFile": _file(known_hosts),
    }


def _file(path: Path) -> str:
    """Return a path as ssh_config(5) reads it: blanks quoted, percent signs doubled."""
    return '"' + str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"') + '"'
