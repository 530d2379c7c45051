"""SSH keys: tpukit's or the user's key pair, host keys, and known-hosts files for OpenSSH."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tpukit.errors import BadInput, Fix, SecurityRefusal
from tpukit.paths import private_directory, read_own, replace_file
from tpukit.text import one_line, shown_path

#: The host key types to pin. Google's guest agent publishes more (GoogleCloudPlatform/guest-agent:
#: google_guest_agent/instance_setup.go), also DSA, which no current client accepts.
HOST_KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
_PRIVATE_NAME = "tpukit_ed25519"
_COMMENT = "tpukit"  #: of the public line in metadata
#: The type and body of a public key: sshd(8), AUTHORIZED_KEYS FILE FORMAT.
_PUBLIC = re.compile(
    r"(ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp(?:256|384|521)"
    r"|sk-(?:ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com) [A-Za-z0-9+/]+={0,2}"
)
_PLAIN_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


@dataclass(frozen=True)
class KeyPair:
    """The file of a private key, and its public line (`ssh-ed25519 AAAA… comment`).

    A key with `users_own` may have a passphrase and a certificate, or exist only in an agent.
    """

    private_path: Path
    public: str
    users_own: bool = False

    @property
    def public_path(self) -> Path:
        """The file of the public line; for tpukit's own key it may not exist."""
        return Path(f"{self.private_path}.pub")


def has_key_pair(directory: Path) -> bool:
    """Return True if tpukit has made its key pair in a folder."""
    return (directory / _PRIVATE_NAME).exists()


def ensure_key_pair(directory: Path) -> KeyPair:
    """Return tpukit's ed25519 key pair; create it on first use, in a private folder.

    Raises `SecurityRefusal` if others can read the key, if it belongs to another user, or if it is
    a symbolic link, and `BadInput` if the folder or the file cannot be used.
    """
    path = private_directory(directory) / _PRIVATE_NAME
    try:
        if path.is_symlink():
            raise SecurityRefusal(f"{path} is a symbolic link", fix=Fix.command("rm", str(path)))
        if not path.exists():
            _create_private_key(path)
        public = _public_line(path)
    except OSError as error:
        raise BadInput(
            f"the SSH key {path} cannot be used", reason=error.strerror or str(error)
        ) from error
    return KeyPair(path, f"{public} {_COMMENT}")


def own_key_pair(path: Path) -> KeyPair:
    """Return the user's own key pair; `path` is the private file, which need not exist.

    Raises `BadInput` if it is a folder or `PATH.pub` is not a public key, and `SecurityRefusal` if
    others can read the private file.
    """
    key, shown = KeyPair(path, "", users_own=True), shown_path(path)
    try:
        if path.is_dir():
            fix = Fix(note="ssh_key names the private file")
            raise BadInput(f"the SSH key {shown} is a folder", fix=fix)
        public = " ".join(key.public_path.read_text("utf-8", "replace").split()[:2])
        mode = path.stat().st_mode if path.exists() else 0
    except OSError as error:
        raise BadInput(
            f"the public half of the SSH key {shown_path(path)} cannot be read",
            reason=error.strerror or str(error),
            fix=Fix(
                note=f"ssh_key names the private file; {shown_path(key.public_path)} is beside it"
            ),
        ) from error
    if not _PUBLIC.fullmatch(public):
        raise BadInput(f"{shown}.pub is not the public half of an SSH key")
    if mode & 0o077:
        raise SecurityRefusal(
            f"others can read the SSH key {shown}",
            fix=Fix.command("chmod", "600", str(path)),
        )
    return replace(key, public=f"{public} {_COMMENT}")


def write_known_hosts(path: Path, entries: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Write (alias, host keys) pairs to a known-hosts file for the system's OpenSSH, atomically.

    Raises `BadInput` for an alias that could match several workers, and `SecurityRefusal` for a
    line that is not `TYPE BODY` of a host key.
    """
    lines = [f"{_alias(alias)} {_host_key(line)}\n" for alias, keys in entries for line in keys]
    replace_file(path, "".join(lines))


def _alias(alias: str) -> str:
    # known_hosts can have patterns, lists, hashes, markers: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
    if not _PLAIN_ALIAS.fullmatch(alias):
        raise BadInput(f"{one_line(alias)!r} cannot name a worker in a known-hosts file")
    return alias


def _host_key(line: str) -> str:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    words = line.split()
    with suppress(ValueError, UnsupportedAlgorithm):
        if len(words) == 2 and words[0] in HOST_KEY_TYPES:
            load_ssh_public_key(line.encode("ascii"))
            return " ".join(words)
    raise SecurityRefusal("a worker published an invalid host key", reason=one_line(line)[:80])


def _create_private_key(path: Path) -> None:
    """Create the key file atomically; if another process was faster, keep that one's key."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        finished = Path(folder) / path.name
        replace_file(finished, _new_private_key(), durable=True)
        with suppress(FileExistsError):
            os.link(finished, path)


def _new_private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode("ascii")


def _public_line(path: Path) -> str:
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_private_key(read_own(path).encode(), password=None)
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"the SSH key {path} cannot be read",
            reason=one_line(str(error)),
            fix=Fix.command("rm", str(path)),
        ) from error
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(encoding, form).decode("ascii")
