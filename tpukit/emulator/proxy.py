"""The way out of a worker's own network: an HTTP proxy inside that connects from outside.

Package managers and downloaders all know how to use one, and neither routes nor rules of the
machine are touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

PORT = 3128
_PATIENCE = 60.0  #: seconds for a request's head to arrive, and for a connection to be made
_CHUNK = 64 * 1024
_FAILURES = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)


class Proxy:
    """Serves HTTP and CONNECT on one socket; `upstream` is a proxy that everything is left to."""

    def __init__(self, upstream: tuple[str, int] | None = None) -> None:
        self._upstream = upstream
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._serve, sock=listener)

    def stop(self) -> None:
        if self._server:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(*_FAILURES):
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(head, reader, writer)
        writer.close()

    async def _answer(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        (host, port), greeting = (self._upstream, head) if self._upstream else target(head)
        try:
            async with asyncio.timeout(_PATIENCE):
                far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        if greeting:
            far_writer.write(greeting)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(_carry(reader, far_writer), _carry(far_reader, writer))
        finally:
            far_writer.close()


def target(head: bytes) -> tuple[tuple[str, int], bytes]:
    """Return whom a request is for, and its head as that server expects it: none for CONNECT.

    One request a connection: the next one may be for another server. Raises `ValueError` for what
    is not a request to a proxy.
    """
    first, *headers = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, location, protocol = first.split()
    if method == "CONNECT":
        found = urlsplit(f"//{location}")
        return (found.hostname or "", found.port or 443), b""
    found = urlsplit(location)
    if found.scheme != "http" or not found.hostname:
        raise ValueError(location)
    path = (found.path or "/") + (f"?{found.query}" if found.query else "")
    kept = [line for line in headers if not _hop(line)]
    lines = [f"{method} {path} {protocol}", *kept, "Connection: close", "", ""]
    return (found.hostname, found.port or 80), "\r\n".join(lines).encode("latin-1")


def _hop(line: str) -> bool:
    name = line.partition(":")[0].strip().lower()
    return name in ("connection", "keep-alive") or name.startswith("proxy-")


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, and hand the end on."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
