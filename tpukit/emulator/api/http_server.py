"""The emulator's HTTP server: it reads requests, and `Edge` answers them."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import SystemRandom
from socketserver import TCPServer, ThreadingMixIn
from threading import Event, Lock, Thread
from typing import Any, ClassVar

from tpukit.emulator.api.edge import Edge
from tpukit.emulator.api.exchange import ApiReply, ApiRequest
from tpukit.emulator.api.service import Service
from tpukit.emulator.core.api_errors import Status
from tpukit.emulator.core.emulator_clock import EmulatorClock
from tpukit.emulator.core.operation_metadata import DEFAULT, OperationMetadata
from tpukit.emulator.core.service_context import Timing
from tpukit.emulator.core.state import EmulatorState, StateFile
from tpukit.emulator.workers.worker_host import WorkerHostFactory
from tpukit.errors import BadInput

#: The name of the state file in its directory, and the largest request body in bytes.
STATE_NAME = "state.db"
LARGEST_BODY = 8 * 1024 * 1024
#: Bytes of a body to read from a client without the token, so that the refusal arrives.
_UNTRUSTED_BODY = 64 * 1024
#: Connections that have shown the token, with a thread each; the server closes further ones.
MOST_CONNECTIONS = 512
#: Connections that have not shown it yet. One more closes the oldest, so that strangers who open
#: many silent connections cannot keep the owner out.
MOST_STRANGERS = 64
#: Seconds without a byte until the server closes a connection: a stranger's, and the owner's.
_STRANGER_SECONDS, _OWNER_SECONDS = 10.0, 300.0
TICK_SECONDS = 0.2
_LONGEST_LINE = 1024
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(;[^\r\n]*)?\r?\n")


class ApiServer:
    """The emulator's APIs on 127.0.0.1; `serve_forever` blocks until `shutdown`."""

    def __init__(
        self, listener: _Listener, service: Service, edge: Edge, opened: contextlib.ExitStack
    ) -> None:
        self.service = service
        self.edge = edge
        self.url = listener.url
        self._listener = listener
        self._opened = opened
        self._lock = Lock()
        self._stopping = Event()
        self._ticker = Thread(target=self._tick, name="ticker", daemon=True)

    def serve_forever(self) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            self._ticker.start()
        self._listener.serve_forever(poll_interval=0.1)

    def shutdown(self) -> None:
        """Stop answering. The workers keep running until their host ends them."""
        with self._lock:
            self._stopping.set()
            started = self._ticker.ident is not None
        self.edge.close()
        self.edge.impersonation.close()
        self.edge.grpc.close()
        if started:
            self._listener.shutdown()
            self._ticker.join()
        self._opened.close()

    def _tick(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            # The next request reports the error, and the next tick tries to save again.
            with contextlib.suppress(OSError):
                self.edge.tick()


def build_server(
    state_directory: Path,
    token: str | None,
    worker_host_factory: WorkerHostFactory,
    create_seconds: float = 2.0,
    clock: EmulatorClock | None = None,
    port: int = 0,
    operation_metadata: OperationMetadata = DEFAULT,
    keep: bool = True,
) -> ApiServer:
    """Return a server that listens, with its saved nodes; `serve_forever` then answers.

    `token` None admits everyone. Without `keep`, the server neither loads nor saves its state.
    Raises `BadInput` if the state file cannot be used or the port is in use.
    """
    state_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = StateFile(state_directory / STATE_NAME)
    with contextlib.ExitStack() as opened:
        opened.callback(file.close)
        state = file.load() if keep else EmulatorState()
        save = file.save if keep else EmulatorState.settle
        last = state.clock.get("clock", {"offset": 0.0, "time": 0.0})
        clock = clock or EmulatorClock(offset=last["offset"], shown=last["time"])
        try:
            listener = _Listener(port, clock.time)
        except OSError as error:
            reason = error.strerror or ""
            raise BadInput(f"cannot listen on port {port}", reason=reason) from error
        opened.callback(listener.server_close)
        service = Service(
            state,
            clock,
            SystemRandom(),
            worker_host_factory,
            Timing.for_create(create_seconds),
            compute_base=f"{listener.url}/compute/v1/",
            operation_metadata=operation_metadata,
        )
        edge = Edge(service, token, lambda: save(state), state_directory)
        listener.answer, listener.admits = edge.answer, edge.admits
        service.resume()
        edge.tick()
        return ApiServer(listener, service, edge, opened.pop_all())


#: The headers that Google's front end adds to every answer. Recorded: tests/recorded/exchanges.
_HEADERS = (
    *(("Vary", name) for name in ("Origin", "X-Origin", "Referer")),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "SAMEORIGIN"),
    ("X-XSS-Protection", "0"),
)


class _Listener(ThreadingMixIn, TCPServer):
    """A TCP server with a thread per connection; unlike HTTPServer, it looks up no names."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, port: int, now: Callable[[], float]) -> None:
        self.answer: Callable[[ApiRequest], ApiReply] = _not_yet
        self.admits: Callable[[str], bool] = lambda authorization: False
        self.now = now
        self._lock = Lock()
        self._strangers: dict[socket.socket, None] = {}  #: the oldest first
        self._owners: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a new thread; if strangers hold too many, end the oldest."""
        with self._lock:
            if len(self._strangers) >= MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with contextlib.suppress(OSError):  # its thread sees the end and closes it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._strangers[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._strangers.pop(request, None)
                self._owners.discard(request)

    def has_room_for_owner(self, connection: socket.socket) -> bool:
        """Mark a connection as the owner's and return True, or False if the owner has too many."""
        with self._lock:
            if connection not in self._owners and len(self._owners) >= MOST_CONNECTIONS:
                return False
            self._strangers.pop(connection, None)
            self._owners.add(connection)
            return True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a client may disconnect at any time."""


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"
    server_version = "tpukit-emulator"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout: ClassVar[float] = _STRANGER_SECONDS

    def _serve(self) -> None:
        authorization = self.headers.get("Authorization", "")
        trusted = self.server.admits(authorization)
        if trusted:
            if not self.server.has_room_for_owner(self.connection):
                self.close_connection = True
                return
            self.connection.settimeout(_OWNER_SECONDS)
        body = self._body(LARGEST_BODY if trusted else _UNTRUSTED_BODY)
        if body is None and not trusted:
            body, self.close_connection = b"", True
        if body is None:
            status = Status("INVALID_ARGUMENT", "Request payload size exceeds the limit.", http=413)
            self.close_connection = True
            self._send(ApiReply.error(status, compute=False))
            return
        kind = self.headers.get("Content-Type", "")
        host = self.headers.get("Host", "")
        request = ApiRequest(self.command, self.path, body, authorization, kind, host)
        other = self.headers.get("X-HTTP-Method-Override", "")
        self._send(self.server.answer(request.overridden(other)))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the emulator's time for `Date`: clients compute the age of resources from it."""
        return super().date_time_string(self.server.now() if timestamp is None else timestamp)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the control plane has the log."""

    def _body(self, most: int) -> bytes | None:
        coding = self.headers.get("Transfer-Encoding", "")
        if coding.strip().lower() == "chunked":
            return self._chunks(most)
        text = self.headers.get("Content-Length", "0")
        if coding or not text.isdecimal():
            return None
        return self.rfile.read(int(text)) if int(text) <= most else None

    def _chunks(self, most: int) -> bytes | None:
        """Return a chunked body (RFC 9112, section 7.1), or None if too large or malformed."""
        body = b""
        while size := self._chunk_size():
            if len(body) + size > most:
                return None
            body += self.rfile.read(size)
            if self.rfile.readline(3) != b"\r\n":
                return None
        if size is None:
            return None
        while self.rfile.readline(_LONGEST_LINE).strip():
            pass  # ignore trailers
        return body

    def _chunk_size(self) -> int | None:
        match = _CHUNK_SIZE.match(self.rfile.readline(_LONGEST_LINE))
        return int(match[1], 16) if match else None

    def _send(self, reply: ApiReply) -> None:
        if reply.cut == "reset":
            self._reset()
            return
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in _HEADERS:
            self.send_header(name, value)
        self.end_headers()
        if reply.cut == "truncate":
            self.close_connection = True
            self.wfile.write(reply.body[: len(reply.body) // 2])
        else:
            self.wfile.write(reply.body)

    def _reset(self) -> None:
        """Close with RST, like a load balancer that drops its back end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())


def _not_yet(request: ApiRequest) -> ApiReply:
    return ApiReply.error(Status("UNAVAILABLE", "The emulator is starting."), compute=False)
