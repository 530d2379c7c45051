"""The address from which a worker sees us: what a firewall rule has to admit."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.text import one_line

#: ns1.google.com, which answers the TXT question below with the address that asked.
_SERVER = "216.239.32.10"
_QUESTION = "o-o.myaddr.l.google.com"
_SECONDS = 3.0
#: From which Identity-Aware Proxy connects: https://cloud.google.com/iap/docs/using-tcp-forwarding
IAP_RANGE = "35.235.240.0/20"
#: What Compute Engine's firmware calls itself, which is how google-auth knows it:
#: google/auth/compute_engine/_metadata.py, detect_gce_residency_linux.
_PRODUCT = Path("/sys/class/dmi/id/product_name")


def source_address(worker_address: str) -> str:
    """Return our address as the worker at `worker_address` sees it.

    A worker on a private or loopback address is reached without translation, so the address of our
    own end of that route is the answer; a public one sees the address that Google's name server
    sees.

    Raises `TpukitError` where the address cannot be found out; it has to be given.
    """
    try:
        destination = ipaddress.ip_address(worker_address)
    except ValueError as error:
        raise TpukitError(f"{one_line(worker_address)!r} is not an address") from error
    local = route_address(worker_address)
    behind_translation = ipaddress.ip_address(local).is_private
    if destination.is_global and behind_translation:
        return public_address()
    return local


def is_inside(product: Path = _PRODUCT) -> bool:
    """Return whether this machine is on Google's network, as its firmware tells."""
    try:
        return product.read_text(encoding="utf-8", errors="replace").startswith("Google")
    except OSError:
        return False


def check_inside(product: Path = _PRODUCT) -> None:
    """Raise `BadInput` unless this machine is on Google's network."""
    if not is_inside(product):
        raise BadInput(
            "a slice without external addresses cannot be reached from this machine",
            why="it is not on Google's network",
            fix=Fix(
                note="add --iap, or --jump with what is inside; where a VPN leads there, "
                "--source-range with this machine's address in it"
            ),
        )


def route_address(destination: str) -> str:
    """Return the local address of the route to `destination`; no packet is sent.

    Raises `TpukitError` where there is no route.
    """
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 22))
        except OSError as error:
            raise TpukitError(f"no route to {destination}", why=str(error)) from error
        return str(probe.getsockname()[0])


def public_address(server: str = _SERVER, port: int = 53) -> str:
    """Ask a name server of Google's which address our questions come from.

    Raises `TpukitError` where it did not answer, or not with an address.
    """
    import dns.exception
    import dns.resolver

    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers = [server]
    resolver.port = port
    try:
        answer = resolver.resolve(_QUESTION, "TXT", lifetime=_SECONDS, raise_on_no_answer=True)
        text = b"".join(next(iter(answer)).strings).decode("ascii")
        return str(ipaddress.ip_address(text))
    except (dns.exception.DNSException, ValueError, OSError) as error:
        raise TpukitError(
            "cannot find out your public address",
            why=str(error) or type(error).__name__,
            fix=Fix(note="give it: --source-range 203.0.113.7/32, or 35.235.240.0/20 for IAP"),
        ) from error
