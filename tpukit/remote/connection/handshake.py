"""What a handshake has to hold to: strong algorithms, a pinned host key, causes by name."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from typing import Any

from tpukit.clock import Deadline
from tpukit.errors import Fix, HostKeyMismatch, SecurityRefusal, TransportFailed, Unanswered
from tpukit.remote.connection.keys import HOST_KEY_TYPES
from tpukit.remote.connection.target import Target
from tpukit.text import one_line

#: paramiko 5.1 still offers these: paramiko/paramiko:paramiko/transport.py, _preferred_ciphers.
_WEAK = re.compile(r"cbc|3des|md5|sha1$|sha1-|dss")
#: An RSA key signs under two names, neither of them SHA-1: RFC 8332.
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


def pins(target: Target) -> tuple[str, ...]:
    """Return the target's host keys of the types we pin, as `TYPE BODY`, best type first.

    None of a target whose first host key is to be taken. Raises `SecurityRefusal` where another one
    has none: an unknown worker is never trusted.
    """
    keys = [tuple(line.split()[:2]) for line in target.host_keys]
    known = [" ".join(key) for kind in HOST_KEY_TYPES for key in keys if key[:1] == (kind,)]
    if not known and not target.accept_new:
        raise SecurityRefusal(
            f"no host key of {target.label} is known",
            why="its guest attributes hold none, so nothing could tell it from an impostor",
        )
    return tuple(known)


def restrict(options: Any, pinned: Iterable[str]) -> None:
    """Leave a paramiko `SecurityOptions` with the pinned key types and no weak algorithm.

    Where nothing is pinned, with all the types that we pin.
    """
    options.kex = _strong(options.kex)
    options.ciphers = _strong(options.ciphers)
    options.digests = _strong(options.digests)
    kinds = dict.fromkeys(line.split()[0] for line in pinned) or HOST_KEY_TYPES
    options.key_types = tuple(name for kind in kinds for name in _SIGNATURES.get(kind, (kind,)))


def mismatch(target: Target, pinned: tuple[str, ...], reason: str) -> HostKeyMismatch:
    """Return the error for a server that is not the worker."""
    return HostKeyMismatch(
        f"what answers at {place(target)} is not {target.label}",
        reason=reason,
        why=f"its known host keys are {', '.join(map(fingerprint, pinned))}; "
        "nothing was sent and our key was not used",
        fix=Fix(
            note="ask who runs your network what answers there; where it is a worker that was made "
            "anew, delete the slice and create it again"
        ),
        details={"worker": target.worker, "address": target.address},
    )


def place(target: Target) -> str:
    """Return `address:port` as URLs write it."""
    host = f"[{target.address}]" if ":" in target.address else target.address
    return f"{host}:{target.port}"


def no_answer(target: Target, error: Exception) -> TransportFailed:
    """Return the error of one attempt to which nobody, or no SSH server, answered.

    After a time-out it is `Unanswered`: nothing came back, as where a firewall drops packets.
    """
    kind = Unanswered if isinstance(error, TimeoutError) else TransportFailed
    what = f"{target.label} does not answer at {place(target)}"
    return kind(what, reason=_cause(error))


def seconds(deadline: Deadline) -> float:
    """Return what is left as a time-out; zero would mean "do not block" to a socket."""
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
    """Drop the weak names; put ciphers that authenticate, and MACs over the ciphertext, first."""
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
