"""More ways in, opened on request: gRPC, plain or encrypted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tpukit.emulator.context import Call
from tpukit.emulator.errors import ApiError, Json, invalid
from tpukit.emulator.exchange import Reply, Request

if TYPE_CHECKING:
    from tpukit.emulator.grpc_server import GrpcServer


class Doors:
    """The gRPC servers of an emulator; there is none until somebody asks for one."""

    def __init__(self, answer: Callable[[Request], Reply], directory: Path) -> None:
        self._answer = answer
        self._directory = directory
        self._open: dict[bool, GrpcServer] = {}

    def open(self, call: Call) -> Json:
        """Open gRPC, with `{"secure": true}` over TLS, on `port` or a free one; tell the address.

        A door that is open already stays where it is. Clients of a secure one have to trust the
        file `authority`.
        """
        secure, port = call.body.get("secure", False), call.body.get("port", 0)
        if not isinstance(secure, bool):
            raise invalid("secure must be true or false.")
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise invalid("port must be a number from 0 to 65535.")
        if secure not in self._open:
            try:
                self._open[secure] = self._server(port, secure)
            except (RuntimeError, ImportError) as error:
                raise ApiError("UNAVAILABLE", f"gRPC cannot be served: {error}") from error
        return self._address(secure)

    def show(self, call: Call) -> Json:
        """Tell the addresses of the doors that are open, `plain` and `secure`."""
        names = {False: "plain", True: "secure"}
        return {name: self._address(key) for key, name in names.items() if key in self._open}

    def close(self) -> None:
        for server in self._open.values():
            server.stop()
        self._open.clear()

    def _address(self, secure: bool) -> Json:
        address = {"address": f"localhost:{self._open[secure].port}"}
        return {**address, **({"authority": str(self._authority)} if secure else {})}

    @property
    def _authority(self) -> Path:
        return self._directory / "tls" / "authority.pem"

    def _server(self, port: int, secure: bool) -> GrpcServer:
        from tpukit.emulator.authority import identity
        from tpukit.emulator.grpc_server import GrpcServer

        shown = identity(self._directory / "tls") if secure else None
        return GrpcServer(self._answer, port, shown)
