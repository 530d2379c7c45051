"""A certificate for this machine's loopback names, and the authority that clients have to trust.

The authority's private key is never written: nobody can have it vouch for anything else.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tpukit.emulator.core.state import replace_file

_LIFE = timedelta(days=825)  #: the longest life that macOS accepts of a server's certificate


@dataclass(frozen=True)
class TlsIdentity:
    """What a TLS server shows (PEM), and the file that its clients have to trust."""

    key: bytes
    certificate: bytes
    authority: Path


def identity(directory: Path) -> TlsIdentity:
    """Return the identity kept in `directory`, made at the first call; mode 0700, 0600."""
    directory.mkdir(mode=0o700, exist_ok=True)
    key, certificate = directory / "server.key", directory / "server.pem"
    authority = directory / "authority.pem"
    if not certificate.exists():  # it is written last
        made_authority, made_certificate, made_key = _make()
        for path, data in (
            (key, made_key),
            (authority, made_authority),
            (certificate, made_certificate),
        ):
            replace_file(path, data)
    return TlsIdentity(key.read_bytes(), certificate.read_bytes(), authority)


def _make() -> tuple[bytes, bytes, bytes]:
    """Return the authority's certificate, the server's certificate and the server's key."""
    ours, theirs = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name("tpukit emulator authority")
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    authority = (
        _builder(issuer, issuer, ours)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ours, hashes.SHA256())
    )
    certificate = (
        _builder(_name("localhost"), issuer, theirs)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(ours, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = serialization.PrivateFormat.PKCS8
    key = theirs.private_bytes(pem, private, serialization.NoEncryption())
    return authority.public_bytes(pem), certificate.public_bytes(pem), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
