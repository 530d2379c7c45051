"""Private keys for paramiko, from files or from an SSH agent."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpukit.errors import AuthenticationFailed, BadInput, Fix
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.transport import FAILURES, paramiko
from tpukit.text import one_line, quote, shown_path

#: The same number as OpenSSH: ssh_config(5), NumberOfPasswordPrompts.
_ATTEMPTS = 3
_UNUSABLE = (*FAILURES, paramiko.pkey.UnknownKeyType, ValueError, TypeError)


def private_key(path: Path, passphrase: str | None = None) -> Any:
    """Load a private key from its file, with the certificate beside it.

    Raises `AuthenticationFailed` if it is not a key, or has another passphrase.
    """
    try:
        return paramiko.PKey.from_path(path, passphrase and passphrase.encode())
    except _UNUSABLE as error:
        what = f"the private key {one_line(str(path))} cannot be used"
        raise AuthenticationFailed(what, reason=one_line(str(error))) from error


def own_key(key: KeyPair, ask: Callable[[Path], str], seconds: float) -> Any:
    """Return the user's own key from the agent if it is there, else from its file.

    The agent has `seconds` to answer. `ask` returns the passphrase of the file.

    Raises:
        AuthenticationFailed: there is neither a file nor a key in the agent, or the file is no key,
            or has another passphrase.
        BadInput: the file of its public half has another key's.

    It also raises the errors of `ask`.
    """
    held, path = _in_agent(key, seconds), key.private_path
    if held:
        return held
    if not path.exists():
        shown = shown_path(path)
        raise AuthenticationFailed(
            f"the private key {shown} is neither a file nor in your agent",
            why=f"{shown}.pub is only its public half",
            fix=Fix.command("ssh-add", "-l", note="lists the keys that your agent has"),
        )
    protected = _has_passphrase(path)
    for _ in range(_ATTEMPTS if protected else 1):
        try:
            return _matching(key, private_key(path, ask(path) if protected else None))
        except AuthenticationFailed as error:
            last = error
    readable = Fix.command("ssh-keygen", "-y", "-f", str(path), note="shows if OpenSSH can read it")
    asked = Fix.command("ssh-add", str(path), note="tpukit finds it in your agent then")
    last.fix = asked if protected else readable
    raise last


def _matching(key: KeyPair, private: Any) -> Any:
    """Return a private key; raise `BadInput` if the file of its public half has another key's."""
    public = f"{private.get_name()} {private.get_base64()}"
    if not key.public.startswith(public):
        path, half = str(key.private_path), str(key.public_path)
        line = f"{quote(['ssh-keygen', '-y', '-f', path])} >{quote([half])}"
        raise BadInput(
            f"{shown_path(key.public_path)} is not the public half of {one_line(path)}",
            why="a worker would let in another key than the one that tpukit has",
            fix=Fix.command("sh", "-c", line),
        )
    return private


def unlocked(key: KeyPair, loaded: Any) -> bytes:
    """Return the text of a loaded key file without its passphrase.

    It is empty if the file has no passphrase, or if an agent holds the key.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if isinstance(loaded, _AgentKey) or not _has_passphrase(key.private_path):
        return b""
    if isinstance(loaded, paramiko.Ed25519Key):
        private: Any = Ed25519PrivateKey.from_private_bytes(bytes(loaded._signing_key))
    else:
        private = loaded.signing_key if isinstance(loaded, paramiko.ECDSAKey) else loaded.key
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    text: bytes = private.private_bytes(encoding, form, serialization.NoEncryption())
    return text


def _has_passphrase(path: Path) -> bool:
    try:
        paramiko.PKey.from_path(path)
    except TypeError:  # cryptography raises it if a passphrase is needed
        return True
    except _UNUSABLE:
        pass
    return False


def _in_agent(key: KeyPair, seconds: float) -> Any:
    """Return the key in the agent of SSH_AUTH_SOCK, or None."""
    public = base64.b64decode(key.public.split()[1])
    agent, connected = paramiko.agent.AgentSSH(), paramiko.agent.get_agent_connection()
    if connected is None:
        return None
    try:
        connected.settimeout(seconds)
        agent._connect(connected)
        connected.settimeout(None)  # a signature may wait for the user
        if public not in [held.blob for held in agent.get_keys()]:
            return None
        certificate = Path(f"{key.private_path}-cert.pub")
        held = _AgentKey(agent, public)
        if certificate.exists():
            held.public_blob = paramiko.pkey.PublicBlob.from_file(str(certificate))
        return held
    except _UNUSABLE as error:
        what = f"your agent cannot be asked for the key {shown_path(key.private_path)}"
        raise AuthenticationFailed(what, reason=one_line(str(error))) from error


class _AgentKey(paramiko.agent.AgentKey):  # type: ignore[misc]
    """A key in the agent; a lock allows one request at a time."""

    def __init__(self, agent: Any, blob: bytes) -> None:
        super().__init__(agent, blob)
        self._turn = threading.Lock()

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> Any:
        """Return the agent's signature."""
        with self._turn:
            return super().sign_ssh_data(data, algorithm)
