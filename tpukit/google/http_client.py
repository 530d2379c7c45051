"""HTTP requests with limits on their total time and on the size of the answer.

It uses only the standard library: importing requests takes 90 ms of CPU, and its timeouts, like
those of other libraries, limit only the time between two bytes.
"""

from __future__ import annotations

import http.client
import io
import os
import select
import socket
import ssl
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from tpukit import __version__
from tpukit.google.no_answer import NoAnswer, cause
from tpukit.settings.table import is_loopback
from tpukit.text import one_line

#: The most bytes of an answer, before and after decompression.
LARGEST_ANSWER = 32 * 2**20
#: Google compresses answers only if the user agent also says gzip:
#: https://cloud.google.com/compute/docs/api/how-tos/performance#gzip
_USER_AGENT = f"tpukit/{__version__} (gzip)"


@dataclass(frozen=True)
class HttpAnswer:
    """A complete answer, with a decompressed body and lower-case header names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Reuses connections; threads may share it."""

    def __init__(self) -> None:
        self._idle: defaultdict[str, list[http.client.HTTPConnection]] = defaultdict(list)

    def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> HttpAnswer:
        """Make one request and return its answer; redirections are not followed.

        Raises:
            NoAnswer: no complete answer came within `seconds`.
            ValueError: the answer exceeds `LARGEST_ANSWER`, or its compression is unknown or wrong.
        """
        parts = urlsplit(url)
        connection = self._open(parts, seconds)
        ends = time.monotonic() + seconds
        connection.response_class = partial(_Response, ends)  # type: ignore[assignment]
        try:
            answer = _answer(connection, method, parts, headers, body)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NoAnswer(f"{_route(parts)}: {cause(error)}") from error
        except ValueError:
            connection.close()
            raise
        self._idle[parts.netloc].append(connection)
        return answer

    def _open(self, parts: SplitResult, seconds: float) -> http.client.HTTPConnection:
        idle = self._idle[parts.netloc]
        while idle:
            connection = idle.pop()
            if connection.sock and not _readable(connection.sock):
                connection.sock.settimeout(seconds)
                return connection
            connection.close()  # the server has closed it, or sent bytes without a request
        try:
            connection = _connection(parts, seconds)
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{_route(parts)}: {cause(error)}", sent=False) from error
        return connection


def _readable(connected: socket.socket) -> bool:
    looking = select.poll()
    looking.register(connected, select.POLLIN)
    return bool(looking.poll(0))


class _Response(http.client.HTTPResponse):
    """An answer that is cut off at a time (`time.monotonic`) and at the largest size."""

    def __init__(self, ends: float, sock: socket.socket, *given: Any, **named: Any) -> None:
        super().__init__(sock, *given, **named)
        self.fp: Any = io.BufferedReader(_Limited(self.fp.detach(), ends))


class _Limited(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, ends: float) -> None:
        self._raw = raw
        self._ends = ends
        self._left = LARGEST_ANSWER + 2**20  # for headers and chunk sizes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise _too_large()
        if time.monotonic() > self._ends:
            raise TimeoutError
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _answer(
    connection: http.client.HTTPConnection,
    method: str,
    parts: SplitResult,
    headers: Mapping[str, str],
    body: bytes | None,
) -> HttpAnswer:
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    given = {"User-Agent": _USER_AGENT, "Accept-Encoding": "gzip", **headers}
    connection.request(method, target, body, given)
    response = connection.getresponse()
    content = response.read(LARGEST_ANSWER + 1)
    if len(content) <= LARGEST_ANSWER and response.length:
        raise http.client.IncompleteRead(content, response.length)
    return HttpAnswer(
        response.status,
        {name.lower(): value for name, value in response.headers.items()},
        _decompressed(content, response),
    )


def _decompressed(content: bytes, response: http.client.HTTPResponse) -> bytes:
    coding = response.headers.get("Content-Encoding", "identity").lower()
    if coding in ("gzip", "x-gzip"):
        try:
            inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            content = inflater.decompress(content, LARGEST_ANSWER + 1)
        except zlib.error as error:
            raise ValueError("the answer says gzip, but is not") from error
    elif coding != "identity":
        raise ValueError(f"the answer is compressed in an unknown way, {one_line(coding)[:30]}")
    if len(content) > LARGEST_ANSWER:
        raise _too_large()
    return content


def _too_large() -> ValueError:
    return ValueError(f"the answer is larger than {LARGEST_ANSWER >> 20} MB")


def _connection(parts: SplitResult, seconds: float) -> http.client.HTTPConnection:
    # Settings allow http only for this machine, and no proxy can reach this machine.
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.netloc, timeout=seconds)
    proxy = _proxy(parts)
    if proxy is None:
        return http.client.HTTPSConnection(parts.netloc, timeout=seconds, context=_tls())
    through = http.client.HTTPSConnection(
        proxy.hostname or "", proxy.port or 8080, timeout=seconds, context=_tls()
    )
    through.set_tunnel(parts.hostname or "", parts.port or 443, _proxy_headers(proxy))
    return through


def _proxy(parts: SplitResult) -> SplitResult | None:
    """Return the proxy for a host from the environment or the system, if any."""
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    named = proxies.get("https") or proxies.get("all")
    direct = is_loopback(f"https://{parts.netloc}") or proxy_bypass(parts.hostname or "")
    if not named or direct:
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise OSError(f"a proxy must be http://HOST:PORT, not {proxy.scheme}://")
    return proxy


def _route(parts: SplitResult) -> str:
    """Return the host of a URL, and its proxy if it has one, for messages."""
    try:
        proxy = _proxy(parts) if parts.scheme == "https" else None
    except OSError:
        proxy = None
    through = f" through the proxy {proxy.hostname}:{proxy.port or 8080}" if proxy else ""
    return f"{parts.netloc}{through}"


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    import base64

    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


@cache
def _tls() -> ssl.SSLContext:
    """Return a TLS context that trusts the same authorities as the requests library."""
    import certifi

    named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    bundle = named or certifi.where()
    if os.path.isdir(bundle):
        return ssl.create_default_context(capath=bundle)
    return ssl.create_default_context(cafile=bundle)
