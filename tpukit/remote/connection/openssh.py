"""The system's OpenSSH client, as strict as our own."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from tpukit.errors import BadInput, Fix
from tpukit.remote.connection.keys import KeyPair, write_known_hosts
from tpukit.remote.connection.target import Target
from tpukit.text import quote, shown_path

#: Bytes of a socket's path: sun_path of macOS, less what OpenSSH puts after it while it makes one.
_LONGEST_SOCKET = 103 - 17


@dataclass(frozen=True)
class OpenSsh:
    """How OpenSSH is called: with one key, and with files in a folder for its owner alone.

    It gives a worker up after `silence` seconds without a sign. A connection stays for `persist`
    seconds after its last use, for whoever comes next; 0 stands for none that stays.
    """

    key: KeyPair
    directory: Path
    silence: int
    persist: int = 0

    def command(
        self, target: Target, *flags: str, remote: str = "", proxy: Sequence[str] = ()
    ) -> list[str]:
        """Return the words that run `remote`, or a login shell, on the worker.

        `flags` are OpenSSH's own, `proxy` as in `options`. The user's own configuration and known
        hosts play no part, nor does the agent, unless the key is the user's own. The worker's known
        hosts are written to a file of its own, for two commands at once would rewrite one between
        writing and reading it.
        """
        known_hosts = self.directory / f"known_hosts.{target.alias}"
        write_known_hosts(known_hosts, [(target.alias, target.host_keys)])
        # Only the passphrase of a key of the user's own is ever asked for.
        batch = "no" if self.key.users_own else "yes"
        given = {**self.options(target, known_hosts, proxy), "BatchMode": batch}
        words = [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
        port = ("-p", str(target.port))
        tail = [remote] if remote else []
        return ["ssh", "-F", "none", *words, *port, *flags, "--", target.address, *tail]

    def persists(self, target: Target, proxy: Sequence[str] = ()) -> bool:
        """Tell whether a connection to the worker has stayed; only where any does."""
        check = self.command(target, "-O", "check", proxy=proxy)
        return subprocess.run(check, capture_output=True, check=False).returncode == 0

    def options(
        self, target: Target, known_hosts: Path, proxy: Sequence[str] = ()
    ) -> dict[str, str]:
        """Return what ssh_config(5) has to say for connections to be as strict as our own.

        Only that key is offered, only the keys under the target's alias in `known_hosts` are
        accepted. `proxy` are the words of a program whose input and output lead to the worker.
        """
        return {
            "CheckHostIP": "no",
            "ConnectTimeout": "30" if proxy else "10",  # gcloud takes a while to start
            "ControlMaster": "auto" if self.persist else "no",
            "ControlPath": self._socket(target, proxy) if self.persist else "none",
            "ControlPersist": str(self.persist or "no"),
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": target.alias,
            "IdentitiesOnly": "yes",
            "IdentityAgent": "SSH_AUTH_SOCK" if self.key.users_own else "none",
            "IdentityFile": _file(Path(target.identity_file or self.key.private_path)),
            "PreferredAuthentications": "publickey",
            "ProxyCommand": quote(proxy).replace("%", "%%") if proxy else "none",
            "ServerAliveCountMax": "2",  # the third time that nothing has come is one too many
            "ServerAliveInterval": str(-(-self.silence // 3)),
            "StrictHostKeyChecking": "yes",
            "UpdateHostKeys": "no",
            "User": target.user,
            "UserKnownHostsFile": _file(known_hosts),
        }

    def _socket(self, target: Target, proxy: Sequence[str]) -> str:
        """Return where a connection is found again: by its host keys and its route too.

        OpenSSH's own digest, %C, has neither, and would lead to another worker at that address.
        """
        digest = hashlib.sha256(repr((astuple(target), tuple(proxy))).encode()).hexdigest()
        path = self.directory / digest[:16]
        if len(bytes(path)) > _LONGEST_SOCKET:
            raise BadInput(
                f"{shown_path(self.directory)} is too long a path for sockets",
                fix=Fix(note="set TPUKIT_HOME to a shorter one"),
            )
        return _file(path)


def _file(path: Path) -> str:
    """Return a path as ssh_config(5) reads it: blanks quoted, percent signs doubled."""
    return '"' + str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"') + '"'
