"""A TLS listener that decrypts HTTP/1.1 and gRPC and passes them to the plain listeners."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from threading import Thread

from tpukit.emulator.api.tls import TlsIdentity

_CHUNK = 64 * 1024
_HANDSHAKE_SECONDS = 10.0
#: Simultaneous gRPC connections: one more cuts the oldest, and its client reconnects. The plain
#: listener limits HTTP/1.1 connections itself.
MOST_GRPC = 128


class TlsListener:
    """A thread that passes TLS connections on to ports of 127.0.0.1.

    It connects clients that offer HTTP/1.1 to the port `http`. Clients that offer only HTTP/2 use
    gRPC, so it connects them to the port that `grpc` returns; that call may be slow.
    """

    def __init__(
        self,
        listener: socket.socket,
        identity: TlsIdentity,
        http: int,
        grpc: Callable[[], int],
    ) -> None:
        self.address, self.port = listener.getsockname()
        self._http = http
        self._grpc = grpc
        self._connections: set[asyncio.Task[None]] = set()
        self._grpc_connections: dict[asyncio.Task[None], None] = {}  #: the oldest first
        self._loop = asyncio.new_event_loop()
        # A client that disconnects is no error.
        self._loop.set_exception_handler(lambda loop, context: None)
        starting = asyncio.start_server(
            self._serve,
            sock=listener,
            ssl=_context(identity),
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,
        )
        self._server = self._loop.run_until_complete(starting)
        self._thread = Thread(target=self._run, name="tls", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and cut all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._server.close()
        for task in self._connections:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._connections, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            port = self._http
            spoken = writer.get_extra_info("ssl_object").selected_alpn_protocol()
            if spoken == "h2":
                self._make_room_for_grpc(task)
                port = await self._loop.run_in_executor(None, self._grpc)
            await self._carry_both(reader, writer, port)
        finally:
            self._connections.discard(task)
            self._grpc_connections.pop(task, None)
            writer.close()

    def _make_room_for_grpc(self, task: asyncio.Task[None]) -> None:
        if len(self._grpc_connections) >= MOST_GRPC:
            oldest = next(iter(self._grpc_connections))
            del self._grpc_connections[oldest]
            oldest.cancel()
        self._grpc_connections[task] = None

    async def _carry_both(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        outward = asyncio.create_task(_carry(inner_reader, writer))
        inward = asyncio.create_task(_carry(reader, inner_writer))
        try:
            await asyncio.wait({outward, inward}, return_when=asyncio.FIRST_COMPLETED)
            if outward.done() and isinstance(outward.exception(), ConnectionResetError):
                _reset(writer)
        finally:
            for direction in (outward, inward):
                direction.cancel()
            inner_writer.close()


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as the plain listener did."""
    with contextlib.suppress(OSError):
        end = writer.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _context(identity: TlsIdentity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The server prefers the first: a client that offers both, such as curl, is not a gRPC client.
    context.set_alpn_protocols(["http/1.1", "h2"])
    context.load_cert_chain(identity.certificate, identity.key)
    return context
