"""gRPC listeners with or without TLS, opened on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from tpukit.emulator.api.exchange import ApiReply, ApiRequest
from tpukit.emulator.core.api_errors import ApiError, Json, invalid, is_whole
from tpukit.emulator.core.service_context import Call

if TYPE_CHECKING:
    from tpukit.emulator.api.grpc_server import GrpcServer


class GrpcListeners:
    """The gRPC servers of an emulator, which start on the first request for one."""

    def __init__(self, answer: Callable[[ApiRequest], ApiReply], directory: Path) -> None:
        self._answer = answer
        self._directory = directory
        self._lock = Lock()
        self._open: dict[bool, GrpcServer] = {}

    def open(self, call: Call) -> Json:
        """Open gRPC on `port` or a free one, with TLS if `secure`, and return the address.

        A listener that is open already keeps its port. Its clients need to trust the certificate
        in `authority` for TLS.
        """
        secure, port = call.body.get("secure", False), call.body.get("port", 0)
        if not isinstance(secure, bool):
            raise invalid("secure must be true or false.")
        if not is_whole(port, most=65535):
            raise invalid("port must be a number from 0 to 65535.")
        try:
            self._opened(secure, port)
        except (RuntimeError, ImportError) as error:
            raise ApiError("UNAVAILABLE", f"gRPC cannot be served: {error}") from error
        return self._address(secure)

    def plain_port(self) -> int:
        """Return the port without TLS, and open it if necessary. Safe from any thread."""
        return self._opened(False, 0).port

    def show(self, call: Call) -> Json:
        """Return the addresses of the open listeners, by `plain` and `secure`."""
        names = {False: "plain", True: "secure"}
        return {name: self._address(key) for key, name in names.items() if key in self._open}

    def close(self) -> None:
        for server in self._open.values():
            server.stop()
        self._open.clear()

    def _opened(self, secure: bool, port: int) -> GrpcServer:
        with self._lock:
            if secure not in self._open:
                self._open[secure] = self._server(port, secure)
            return self._open[secure]

    def _address(self, secure: bool) -> Json:
        authority = {"authority": str(self._directory / "tls" / "authority.pem")} if secure else {}
        # Not "localhost": it may mean ::1, and another account may listen there for the token.
        return {"address": f"127.0.0.1:{self._open[secure].port}", **authority}

    def _server(self, port: int, secure: bool) -> GrpcServer:
        from tpukit.emulator.api.grpc_server import GrpcServer
        from tpukit.emulator.api.tls import identity

        shown = identity(self._directory / "tls") if secure else None
        return GrpcServer(self._answer, port, shown)
