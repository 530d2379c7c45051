"""Command lines for the system's OpenSSH client, as strict as tpukit's own connections."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from tpukit.errors import BadInput, Fix
from tpukit.ssh.keys import KeyPair, write_known_hosts
from tpukit.ssh.target import Target
from tpukit.text import quote, shown_path

#: The most bytes of a socket's path: sun_path of macOS, less the suffix that OpenSSH adds at first.
_LONGEST_SOCKET = 103 - 17


@dataclass(frozen=True)
class OpenSsh:
    """The settings for OpenSSH: one key, and a private folder for its files.

    OpenSSH gives up after `silence` seconds without a sign of life. A connection stays open for
    reuse for `persist` seconds after its last use; with 0 it closes at once.
    """

    key: KeyPair
    directory: Path
    silence: int
    persist: int = 0

    def command(
        self, target: Target, *flags: str, remote: str = "", proxy: Sequence[str] = ()
    ) -> list[str]:
        """Return the words that run `remote`, or a login shell, on the worker.

        `flags` are options of OpenSSH; for `proxy` see `options`. The command ignores the user's
        configuration and known hosts, and the agent unless the key is the user's own. Each worker
        has its own known-hosts file, because commands for two workers would overwrite a shared one.
        """
        known_hosts = self.directory / f"known_hosts.{target.alias}"
        write_known_hosts(known_hosts, [(target.alias, target.host_keys)])
        # OpenSSH may ask only for the passphrase of the user's own key.
        batch = "no" if self.key.users_own else "yes"
        given = {**self.options(target, known_hosts, proxy), "BatchMode": batch}
        words = [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
        port = ("-p", str(target.port))
        tail = [remote] if remote else []
        return ["ssh", "-F", "none", *words, *port, *flags, "--", target.address, *tail]

    def persists(self, target: Target, proxy: Sequence[str] = ()) -> bool:
        """Return True if an open connection to the worker can be reused; needs `persist`."""
        check = self.command(target, "-O", "check", proxy=proxy)
        return subprocess.run(check, capture_output=True, check=False).returncode == 0

    def options(
        self, target: Target, known_hosts: Path, proxy: Sequence[str] = ()
    ) -> dict[str, str]:
        """Return the options of ssh_config(5) for connections as strict as tpukit's own.

        They offer only this key, and accept only the host keys under the target's alias in
        `known_hosts`. `proxy` is the command line of a program that connects to the worker.
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
            "ServerAliveCountMax": "2",  # the third unanswered request ends the connection
            "ServerAliveInterval": str(-(-self.silence // 3)),
            "StrictHostKeyChecking": "yes",
            "UpdateHostKeys": "no",
            "User": target.user,
            "UserKnownHostsFile": _file(known_hosts),
        }

    def _socket(self, target: Target, proxy: Sequence[str]) -> str:
        """Return the path of a shared connection's socket, named by the target and its route.

        OpenSSH's own digest, %C, omits the host keys and the route, so it could lead to another
        worker at the same address.
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
    """Return a path for ssh_config(5): in quotes, with percent signs doubled."""
    return '"' + str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"') + '"'
