"""What an SSH connection is made to, and how a command over it ended, free of heavy imports."""

from __future__ import annotations

from dataclasses import dataclass

from tpukit.text import one_line, sanitize


@dataclass(frozen=True)
class Target:
    """Where one worker answers, and the host keys (`ssh-ed25519 AAAA…`) it has to prove.

    `label` names the worker to a reader: `demo worker 0`. `address` is an IP address. Without host
    keys it is refused, unless the first that is shown is to be taken (`accept_new`).
    """

    label: str
    worker: int
    address: str
    port: int
    user: str
    host_keys: tuple[str, ...]
    hostname: str = ""  #: from its guest attributes; Identity-Aware Proxy asks for it, and the zone
    zone: str = ""
    alias: str = ""  #: under which its host keys are pinned for OpenSSH
    accept_new: bool = False
    identity_file: str = ""  #: of the private key to offer in place of our own
    internal_address: str = ""  #: where the slice's other workers find it


@dataclass(frozen=True)
class Completed:
    """How a command ended: its exit status (128 + n after signal n) and the end of each stream."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def reason(self) -> str:
        """Why it failed, in one line: the end of stderr, or the status."""
        return one_line(self.stderr[-400:]) or f"status {self.status}"

    @property
    def text(self) -> str:
        """Standard output, sanitized."""
        return sanitize(self.stdout)
