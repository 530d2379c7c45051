"""The address from which workers see this machine, which a firewall rule must admit."""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.google.credentials import on_compute_engine
from tpukit.google.retrying_session import bounded
from tpukit.text import one_line

#: Services that answer with the caller's address, over https, because an answer over UDP could be
#: forged. Both are documented: AWS, "Amazon EC2 key pairs and security groups"; Cloudflare,
#: "/cdn-cgi/".
_SOURCES = ("https://checkip.amazonaws.com/", "https://1.1.1.1/cdn-cgi/trace")
_SECONDS = 4.0
_LARGEST = 4096
#: The range of Identity-Aware Proxy: https://cloud.google.com/iap/docs/using-tcp-forwarding
IAP_RANGE = "35.235.240.0/20"


def source_address(
    worker_address: str, public: Callable[[], str], route: Callable[[str], str] | None = None
) -> str:
    """Return our address as the worker at `worker_address` sees it.

    Connections to a private or loopback address are not translated, so the worker sees our local
    address on that route, which `route` returns. A worker with a public address sees the result of
    `public`, unless our local address is public too.

    Raises `TpukitError` if the address cannot be found out; the user must then give it.
    """
    try:
        destination = ipaddress.ip_address(worker_address)
    except ValueError as error:
        raise TpukitError(f"{one_line(worker_address)!r} is not an address") from error
    local = (route or route_address)(worker_address)
    # Not `is_private`: 100.64.0.0/10 is neither private nor global, and is translated (RFC 6598).
    if destination.is_global and not ipaddress.ip_address(local).is_global:
        return public()
    return local


def check_inside() -> None:
    """Raise `BadInput` unless this machine's firmware says that it is on Google's network."""
    if not on_compute_engine():
        raise BadInput(
            "a slice without external addresses cannot be reached from this machine",
            why="it is not on Google's network",
            fix=Fix(
                note="add --iap, or --jump with a host inside; with a VPN, add "
                "--source-range with this machine's address in it"
            ),
        )


def route_address(destination: str) -> str:
    """Return the local address of the route to `destination`; no packet is sent.

    Raises `TpukitError` if there is no route.
    """
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 22))
        except OSError as error:
            raise TpukitError(f"no route to {destination}", why=str(error)) from error
        return str(probe.getsockname()[0])


def public_address(sources: Sequence[str] = _SOURCES) -> tuple[str, str]:
    """Return our public IPv4 address, and the host that reported it.

    It asks the sources in order, without a proxy, because SSH connections do not use one.

    Raises `TpukitError` if no source answered with a public address.
    """
    problems = []
    for url in sources:
        host = urlsplit(url).netloc
        try:
            return bounded(_SECONDS, partial(_read_address, url)), host
        except (OSError, http.client.HTTPException, ValueError) as error:
            problems.append(f"{host}: {one_line(str(error)) or type(error).__name__}")
    raise TpukitError(
        "cannot find out your public address",
        why="; ".join(problems),
        fix=Fix(note="give it: --source-range 203.0.113.7/32, or --iap for Identity-Aware Proxy"),
    )


def _read_address(url: str) -> str:
    parts = urlsplit(url)
    kind = http.client.HTTPConnection if parts.scheme == "http" else http.client.HTTPSConnection
    connection = kind(parts.netloc, timeout=_SECONDS)
    try:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        text = response.read(_LARGEST).decode("ascii", "replace")
    finally:
        connection.close()
    if response.length:
        raise ValueError("the answer is incomplete")
    match = re.search(r"^(?:ip=)?([\d.]+)\s*$", text, re.MULTILINE)
    if response.status != 200 or not match or not ipaddress.IPv4Address(match[1]).is_global:
        raise ValueError(f"status {response.status}, and no public IPv4 address")
    return match[1]
