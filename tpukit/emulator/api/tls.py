"""A certificate for loopback and Google's names, and the authority that clients must trust.

The authority's private key is never written, so it can sign nothing else later.
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

from tpukit.emulator.api.exchange import GOOGLE_NAMES
from tpukit.paths import replace_file

_LIFE = timedelta(days=825)  #: the longest life of a server's certificate that macOS accepts
_SPARE = timedelta(days=30)  #: the shortest remaining life of a certificate to reuse
#: An authority with a path length must say that it signs certificates: RFC 5280, 4.2.1.9.
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=False,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
_LOCAL_NAMES = ("localhost",)
_LOCAL_ADDRESS = "127.0.0.1"


@dataclass(frozen=True)
class TlsIdentity:
    """PEM files: a TLS server's key and certificate, and the authority for its clients."""

    key: Path
    certificate: Path
    authority: Path


def identity(directory: Path) -> TlsIdentity:
    """Return the identity in `directory` (mode 0700, its files 0600).

    The first call makes it; a later call makes a new one if it expires soon or lacks a part.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    key, certificate = directory / "server.key", directory / "server.pem"
    authority = directory / "authority.pem"
    if not certificate.exists() or not _lasts(certificate.read_bytes()):  # written last
        made_authority, made_certificate, made_key = _make()
        for path, data in (
            (key, made_key),
            (authority, made_authority),
            (certificate, made_certificate),
        ):
            replace_file(path, data.decode("ascii"))
    return TlsIdentity(key, certificate, authority)


def _make() -> tuple[bytes, bytes, bytes]:
    """Return the authority's certificate, the server's certificate and the server's key."""
    ours, theirs = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name("tpukit emulator authority")
    authority = (
        _builder(issuer, issuer, ours, ours)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS, critical=True)
        .sign(ours, hashes.SHA256())
    )
    certificate = (
        _builder(_name("localhost"), issuer, theirs, ours)
        .add_extension(_names(), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(ours, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = serialization.PrivateFormat.PKCS8
    key = theirs.private_bytes(pem, private, serialization.NoEncryption())
    return authority.public_bytes(pem), certificate.public_bytes(pem), key


def _names() -> x509.SubjectAlternativeName:
    address = x509.IPAddress(ipaddress.ip_address(_LOCAL_ADDRESS))
    named = [x509.DNSName(name) for name in (*_LOCAL_NAMES, *GOOGLE_NAMES)]
    return x509.SubjectAlternativeName([*named, address])


def _lasts(pem: bytes) -> bool:
    """Return True if a certificate has every name and its signer, and does not expire soon."""
    certificate = x509.load_pem_x509_certificate(pem)
    has = {extension.oid: extension.value for extension in certificate.extensions}
    complete = has.get(_names().oid) == _names() and x509.AuthorityKeyIdentifier.oid in has
    return complete and certificate.not_valid_after_utc > datetime.now(UTC) + _SPARE


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    """Return a certificate to sign, with the key identifiers of RFC 5280.

    Clients in Python 3.13 and newer refuse one without them: `ssl.create_default_context` sets
    `VERIFY_X509_STRICT` there (Python documentation, "What's New In Python 3.13").
    """
    now = datetime.now(UTC)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(signer, critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
