"""The command line of the system's OpenSSH client, as strict as our own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tpukit.remote.connection.keys import KeyPair
from tpukit.remote.connection.target import Target
from tpukit.text import quote


def available() -> bool:
    """Tell whether the system has an OpenSSH client."""
    return shutil.which("ssh") is not None


def command(
    target: Target,
    key: KeyPair,
    known_hosts: Path,
    *flags: str,
    remote: str = "",
    proxy: Sequence[str] = (),
) -> list[str]:
    """Return the words that run `remote`, or a login shell, on the worker.

    `flags` are OpenSSH's own, `proxy` as in `options`. The user's own configuration, agent and
    known hosts play no part.
    """
    given = {**options(target, key, known_hosts, proxy), "BatchMode": "yes"}
    words = [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
    tail = [remote] if remote else []
    return [
        "ssh",
        "-F",
        "none",
        *words,
        "-p",
        str(target.port),
        *flags,
        "--",
        target.address,
        *tail,
    ]


def options(
    target: Target, key: KeyPair, known_hosts: Path, proxy: Sequence[str] = ()
) -> dict[str, str]:
    """Return what ssh_config(5) has to say for connections to be as strict as our own.

    Only our key is offered, only the keys under the target's alias in `known_hosts` are accepted.
    `proxy` are the words of a program whose input and output lead to the worker.
    """
    return {
        "CheckHostIP": "no",
        "ConnectTimeout": "30" if proxy else "10",  # gcloud takes a while to start
        "ControlMaster": "no",
        "ControlPath": "none",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": target.alias,
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "IdentityFile": _file(Path(target.identity_file or key.private_path)),
        "PreferredAuthentications": "publickey",
        "ProxyCommand": quote(proxy).replace("%", "%%") if proxy else "none",
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
