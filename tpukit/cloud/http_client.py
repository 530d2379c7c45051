"""HTTP requests that are bounded, each as a whole: in time, and in the size of their answers.

Only the standard library: requests takes 90 ms of CPU to import, and its timeouts, as those of
every library on sockets, are for the time between two bytes.
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
from tpukit.settings.table import is_loopback
from tpukit.text import one_line

#: Bytes of an answer, compressed and not.
LARGEST_ANSWER = 32 * 2**20
#: Google compresses for clients that say gzip here too:
#: https://cloud.google.com/compute/docs/api/how-tos/performance#gzip
_USER_AGENT = f"tpukit/{__version__} (gzip)"


_CAUSES: dict[type[BaseException], str] = {
    ConnectionRefusedError: "nothing listens there",
    TimeoutError: "no whole answer in time",
    http.client.RemoteDisconnected: "the connection was closed without an answer",
    ConnectionResetError: "the connection was reset",
    http.client.IncompleteRead: "the answer was cut short",
    http.client.HTTPException: "what came is no HTTP",
}


class NoAnswer(Exception):
    """Raised where no whole answer came; `sent` is whether the request may have arrived."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True)
class HttpAnswer:
    """A whole answer, its body as it was before it was compressed, its headers in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Keeps its connections for the next requests; any number of threads may use it."""

    def __init__(self) -> None:
        self._idle: defaultdict[str, list[http.client.HTTPConnection]] = defaultdict(list)

    def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> HttpAnswer:
        """Make one request and return its answer; redirections are not followed.

        Raises:
            NoAnswer: none came within so many seconds, or not the whole of it.
            ValueError: it is larger than `LARGEST_ANSWER`, or compressed in an unknown way.
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
            connection.close()  # the server has closed it, or said what nobody asked for
        try:
            connection = _connection(parts, seconds)
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{_route(parts)}: {cause(error)}", sent=False) from error
        return connection


def cause(error: BaseException) -> str:
    """Return in a few words why no answer came: what the innermost error says."""
    error = _innermost(error)
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved: is there a network?"
    told = next((words for kind, words in _CAUSES.items() if isinstance(error, kind)), "")
    return told or one_line(str(error)[:200]) or type(error).__name__


def arrived(error: BaseException) -> bool:
    """Return whether a request that ended so may have reached the server."""
    return not isinstance(_innermost(error), (socket.gaierror, ConnectionRefusedError))


def _innermost(error: BaseException) -> BaseException:
    within = error.__cause__ or error.__context__
    return _innermost(within) if within else error


def _readable(connected: socket.socket) -> bool:
    looking = select.poll()
    looking.register(connected, select.POLLIN)
    return bool(looking.poll(0))


class _Response(http.client.HTTPResponse):
    """An answer that has to be there by a moment, and of which no more than the largest is read."""

    def __init__(self, ends: float, sock: socket.socket, *given: Any, **named: Any) -> None:
        super().__init__(sock, *given, **named)
        self.fp: Any = io.BufferedReader(_Limited(self.fp.detach(), ends))


class _Limited(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, ends: float) -> None:
        self._raw = raw
        self._ends = ends
        self._left = LARGEST_ANSWER + 2**20  # headers, and the marks between chunks

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
            raise ValueError("the answer is not compressed as it says") from error
    elif coding != "identity":
        raise ValueError(f"the answer is compressed in an unknown way, {one_line(coding)[:30]}")
    if len(content) > LARGEST_ANSWER:
        raise _too_large()
    return content


def _too_large() -> ValueError:
    return ValueError(f"the answer is larger than {LARGEST_ANSWER >> 20} MB")


def _connection(parts: SplitResult, seconds: float) -> http.client.HTTPConnection:
    # Settings allow http for this machine alone, which no proxy can reach.
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
    """Return the proxy that the environment, or the system, names for a host."""
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    named = proxies.get("https") or proxies.get("all")
    direct = is_loopback(f"https://{parts.netloc}") or proxy_bypass(parts.hostname or "")
    if not named or direct:
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise OSError(f"of proxies only http://HOST:PORT is known, not {proxy.scheme}://")
    return proxy


def _route(parts: SplitResult) -> str:
    """Return the host of a URL, with the proxy on the way to it."""
    try:
        proxy = _proxy(parts) if parts.scheme == "https" else None
    except OSError:
        proxy = None
    named = f" through the proxy {proxy.hostname}:{proxy.port or 8080}" if proxy else ""
    return f"{parts.netloc}{named}"


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    import base64

    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


@cache
def _tls() -> ssl.SSLContext:
    """Return what trusts the same authorities as requests does, which google-cloud-tpu uses."""
    import certifi

    named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    bundle = named or certifi.where()
    if os.path.isdir(bundle):
        return ssl.create_default_context(capath=bundle)
    return ssl.create_default_context(cafile=bundle)
