"""The rules of a handshake: strong algorithms, a pinned host key, and clear errors."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from typing import Any

from tpukit.clock import Deadline
from tpukit.errors import Fix, HostKeyMismatch, SecurityRefusal, TransportFailed, Unanswered
from tpukit.ssh.keys import HOST_KEY_TYPES
from tpukit.ssh.target import Target
from tpukit.text import one_line

#: paramiko 5.1 still offers these: paramiko/paramiko:paramiko/transport.py, _preferred_ciphers.
_WEAK = re.compile(r"cbc|3des|md5|sha1$|sha1-|dss")
#: An RSA key signs under two names, neither of them SHA-1: RFC 8332.
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


def pins(target: Target) -> tuple[str, ...]:
    """Return the target's host keys of the types that tpukit pins, as `TYPE BODY`, best type first.

    Raises `SecurityRefusal` if there are none, unless the target accepts its first host key
    (`accept_new`).
    """
    keys = [tuple(line.split()[:2]) for line in target.host_keys]
    known = [" ".join(key) for kind in HOST_KEY_TYPES for key in keys if key[:1] == (kind,)]
    if not known and not target.accept_new:
        raise SecurityRefusal(
            f"no host key of {target.label} is known",
            why="its guest attributes have none, so tpukit cannot tell it from an impostor",
        )
    return tuple(known)


def restrict(options: Any, pinned: Iterable[str]) -> None:
    """Restrict a paramiko `SecurityOptions` to strong algorithms and the pinned key types.

    If no key is pinned, allow all types that tpukit pins.
    """
    options.kex = _strong(options.kex)
    options.ciphers = _strong(options.ciphers)
    options.digests = _strong(options.digests)
    kinds = dict.fromkeys(line.split()[0] for line in pinned) or HOST_KEY_TYPES
    options.key_types = tuple(name for kind in kinds for name in _SIGNATURES.get(kind, (kind,)))


def mismatch(target: Target, pinned: tuple[str, ...], reason: str) -> HostKeyMismatch:
    """Return the error for a server that is not the worker."""
    return HostKeyMismatch(
        f"the server at {place(target)} is not {target.label}",
        reason=reason,
        why=f"its known host keys are {', '.join(map(fingerprint, pinned))}; "
        "nothing was sent and our key was not used",
        fix=Fix(
            note="ask your network's administrator which server that is; if the worker was "
            "recreated, delete the slice and create it again"
        ),
        details={"worker": target.worker, "address": target.address},
    )


def place(target: Target) -> str:
    """Return `address:port`, with an IPv6 address in brackets as in URLs."""
    host = f"[{target.address}]" if ":" in target.address else target.address
    return f"{host}:{target.port}"


def no_answer(target: Target, error: Exception) -> TransportFailed:
    """Return the error for an attempt that no SSH server answered.

    After a time-out it is `Unanswered`: a firewall may have dropped the packets.
    """
    kind = Unanswered if isinstance(error, TimeoutError) else TransportFailed
    what = f"{target.label} does not answer at {place(target)}"
    return kind(what, reason=_cause(error))


def seconds(deadline: Deadline) -> float:
    """Return the remaining time as a time-out above zero: 0 would make a socket non-blocking."""
    return max(0.05, deadline.remaining())


def _cause(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError):
        return one_line(error.strerror or str(error))
    if "banner" in str(error):
        return "no SSH server greeted us"
    return one_line(str(error))[:200] or "the connection was closed during the handshake"


def _strong(offered: Iterable[str]) -> tuple[str, ...]:
    """Drop weak algorithms; put GCM ciphers and encrypt-then-MAC algorithms first."""
    kept = [name for name in offered if not _WEAK.search(name)]
    return tuple(sorted(kept, key=lambda name: "gcm" not in name and "etm" not in name))


def fingerprint(line: str) -> str:
    """Return `TYPE SHA256:…` as ssh-keygen shows it."""
    kind, _, body = line.partition(" ")
    try:
        digest = hashlib.sha256(base64.b64decode(body, validate=True)).digest()
    except binascii.Error:
        return f"{kind} (not a key)"
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
