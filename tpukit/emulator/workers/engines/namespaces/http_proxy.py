"""An HTTP proxy that listens in a worker's own network and connects from the machine's.

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


async def start_proxy(
    listener: socket.socket, upstream: tuple[str, int] | None = None
) -> asyncio.AbstractServer:
    """Serve HTTP and CONNECT on one socket; `upstream` is a proxy that everything is left to."""

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
