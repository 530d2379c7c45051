"""An HTTP proxy that listens in a worker's network and connects from the machine's.

All package managers and download tools can use one, and the machine's routes and firewall rules
stay unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

PORT = 3128
_PATIENCE = 60.0  #: seconds for a request's head to arrive, and to connect
_CHUNK = 64 * 1024
_FAILURES = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)


async def start_proxy(
    listener: socket.socket, upstream: tuple[str, int] | None = None
) -> asyncio.AbstractServer:
    """Serve HTTP and CONNECT on one socket; if `upstream` is set, pass all requests to it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(*_FAILURES):
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            server, greeting = (upstream, head) if upstream else target(head)
            await _forward(server, greeting, reader, writer)
        writer.close()

    return await asyncio.start_server(serve, sock=listener)


async def _forward(
    server: tuple[str, int],
    greeting: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            far_reader, far_writer = await asyncio.open_connection(*server)
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
    """Return the server of a request, and the head to send there (b"" for CONNECT).

    The head closes the connection after one request, because the next may be for another server.
    Raises `ValueError` if the head is not a proxy request.
    """
    first, *headers = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, location, protocol = first.split()
    if method == "CONNECT":
        url = urlsplit(f"//{location}")
        return (url.hostname or "", url.port or 443), b""
    url = urlsplit(location)
    if url.scheme != "http" or not url.hostname:
        raise ValueError(location)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    kept = [line for line in headers if not _hop(line)]
    lines = [f"{method} {path} {protocol}", *kept, "Connection: close", "", ""]
    return (url.hostname, url.port or 80), "\r\n".join(lines).encode("latin-1")


def _hop(line: str) -> bool:
    name = line.partition(":")[0].strip().lower()
    return name in ("connection", "keep-alive") or name.startswith("proxy-")


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, and then end the other stream."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
