"""Our own key pair, the host keys workers publish, and the known-hosts file for OpenSSH."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tpukit.errors import BadInput, Fix, SecurityRefusal
from tpukit.paths import replace_file
from tpukit.text import one_line

#: Host key types we pin. Google's guest agent publishes more (GoogleCloudPlatform/guest-agent:
#: google_guest_agent/instance_setup.go), DSA among them, which no current client accepts.
HOST_KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
_PRIVATE_NAME = "tpukit_ed25519"
_PLAIN_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


@dataclass(frozen=True)
class KeyPair:
    """A private key's file and the public line that belongs to it (`ssh-ed25519 AAAA… comment`)."""

    private_path: Path
    public: str


def ensure_key_pair(directory: Path, comment: str) -> KeyPair:
    """Return our ed25519 key pair, made on first use.

    Raises `SecurityRefusal` for a key that others can read, that belongs to somebody else or that
    is a symbolic link, and `BadInput` for a folder or file that cannot be used.
    """
    path = directory / _PRIVATE_NAME
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(directory, os.lstat(directory), wanted=0o700)
        if not os.path.lexists(path):
            _create_private_key(path)
        public = _public_line(_read_private(path), path)
    except OSError as error:
        raise BadInput(
            f"the SSH key {path} cannot be used", reason=error.strerror or str(error)
        ) from error
    return KeyPair(path, f"{public} {one_line(comment)}".strip())


def parse_host_key(kind: str, value: str) -> str:
    """Return the OpenSSH public key `TYPE BODY` of a published host key.

    Guest attributes carry the bare base64 body under the type's name; `TYPE BODY` is accepted too.
    Raises `SecurityRefusal` unless the body really is a key of that type.
    """
    words = value.split()
    body = words[1] if len(words) > 1 and words[0] == kind else value.strip()
    line = f"{kind} {body}"
    if kind not in HOST_KEY_TYPES or len(body.split()) != 1 or not _is_public_key(line):
        raise SecurityRefusal(
            "a worker published a host key that is none",
            reason=f"{one_line(kind)[:40]} {one_line(value)[:40]}",
        )
    return line


def write_known_hosts(path: Path, entries: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Write the known-hosts file of (alias, host keys) for the system's OpenSSH, all at once."""
    known = [(alias, *key.partition(" ")) for alias, keys in entries for key in keys]
    lines = [f"{_alias(alias)} {parse_host_key(kind, body)}\n" for alias, kind, _, body in known]
    replace_file(path, "".join(lines))


def _alias(alias: str) -> str:
    # known_hosts knows patterns, lists, hashes and markers: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
    if not _PLAIN_ALIAS.fullmatch(alias):
        raise BadInput(f"{one_line(alias)!r} cannot name a worker in a known-hosts file")
    return alias


def _is_public_key(line: str) -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        load_ssh_public_key(line.encode("ascii"))
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True


def _create_private_key(path: Path) -> None:
    """Link a finished key file into place; the loser of a race keeps the winner's."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_new_private_key())
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)


def _new_private_key() -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def _read_private(path: Path) -> bytes:
    _check_private(path, path.lstat(), wanted=0o600)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        _check_private(path, os.fstat(file.fileno()), wanted=0o600)
        return file.read()


def _check_private(path: Path, found: os.stat_result, wanted: int) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise SecurityRefusal(f"{path} is a symbolic link", fix=Fix.command("rm", str(path)))
    if found.st_uid != os.geteuid():
        raise SecurityRefusal(f"{path} belongs to another user", reason=f"uid {found.st_uid}")
    if found.st_mode & 0o077:
        raise SecurityRefusal(
            f"{path} is open to other users",
            reason=f"mode {stat.S_IMODE(found.st_mode):04o}",
            fix=Fix.command("chmod", f"{wanted:o}", str(path)),
        )


def _public_line(private: bytes, path: Path) -> str:
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_private_key(private, password=None)
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"the SSH key {path} cannot be read",
            reason=one_line(str(error)),
            fix=Fix.command("rm", str(path)),
        ) from error
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(encoding, form).decode("ascii")
