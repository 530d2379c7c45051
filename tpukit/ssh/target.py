"""The target of an SSH connection and the result of a command, without heavy imports."""

from __future__ import annotations

from dataclasses import dataclass

from tpukit.text import one_line, sanitize


@dataclass(frozen=True)
class Target:
    """The address of a worker, and the host keys (`ssh-ed25519 AAAA…`) that it must prove.

    `label` names the worker in messages: `demo worker 0`. `address` is an IP address. A target
    without host keys is refused unless `accept_new` allows its first one.
    """

    label: str
    worker: int
    address: str
    port: int
    user: str
    host_keys: tuple[str, ...]
    hostname: str = ""  #: from its guest attributes; Identity-Aware Proxy needs it and the zone
    zone: str = ""
    alias: str = ""  #: its name in known-hosts files for OpenSSH
    accept_new: bool = False
    identity_file: str = ""  #: the file of a private key to offer instead of the connector's
    internal_address: str = ""  #: its address for the slice's other workers


@dataclass(frozen=True)
class Completed:
    """The result of a command: its exit status (128 + n after signal n) and each stream's end.

    `stdout_dropped` and `stderr_dropped` count the bytes before it, which were not kept.
    """

    status: int
    stdout: bytes
    stderr: bytes
    stdout_dropped: int = 0
    stderr_dropped: int = 0

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def reason(self) -> str:
        """The reason of a failure in one line: the end of stderr, or the status."""
        return one_line(self.stderr[-400:]) or f"status {self.status}"

    @property
    def text(self) -> str:
        """Standard output, sanitized."""
        return sanitize(self.stdout)

    def streams(self) -> dict[str, str | int]:
        """Return the keys of a JSON document with both streams."""
        return {
            "stdout": self.stdout.decode("utf-8", "replace"),
            "stdout_dropped": self.stdout_dropped,
            "stderr": self.stderr.decode("utf-8", "replace"),
            "stderr_dropped": self.stderr_dropped,
        }
