"""The emulator under Google's own names: what a client needs that knows no other address."""

from __future__ import annotations

import errno
import hmac
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from tpukit.emulator.api.exchange import GOOGLE_NAMES, ApiReply, ApiRequest
from tpukit.emulator.api.grpc_listeners import GrpcListeners
from tpukit.emulator.core.api_errors import ApiError, Json, encode, invalid, is_whole
from tpukit.emulator.core.service_context import Call
from tpukit.paths import replace_file

if TYPE_CHECKING:
    from tpukit.emulator.api.tls_listener import TlsListener

#: Where clients turn a refresh token into an access token: RFC 6749, section 6.
TOKEN_PATH = "/token"
_HTTPS = 443
#: The third octet is one that no worker is given.
_ADDRESSES = tuple(f"127.77.255.{number}" for number in range(1, 255))


class Impersonation:
    """One TLS listener for every service of `GOOGLE_NAMES`; there is none until it is asked for.

    `base` is an address of the plain HTTP listener, and `directory` keeps what clients need.
    """

    def __init__(self, base: str, token: str | None, grpc: GrpcListeners, directory: Path) -> None:
        self._base = base
        self._token = token
        self._grpc = grpc
        self._directory = directory
        self._listener: TlsListener | None = None

    def open(self, call: Call) -> Json:
        """Listen on `port`, which is 443 where none is given, and return what clients need.

        What is open already stays. Raises `ApiError` where the port cannot be listened on.
        """
        port = call.body.get("port", _HTTPS)
        if not is_whole(port, most=65535):
            raise invalid("port must be a number from 0 to 65535.")
        if self._listener is None:
            self._listener = self._opened(port)
        return self.show(call)

    def show(self, call: Call) -> Json:
        """Return address, port and names, and the files that clients need; {} where it is closed.

        `authority` is the certificate to trust, `bundle` has the public ones with it, for clients
        that read one file alone, and `credentials` is an authorized user's.
        """
        if self._listener is None:
            return {}
        tls = self._directory / "tls"
        return {
            "address": self._listener.address,
            "port": self._listener.port,
            "names": list(GOOGLE_NAMES),
            "authority": str(tls / "authority.pem"),
            "bundle": str(tls / "bundle.pem"),
            "credentials": str(self._directory / "credentials.json"),
        }

    def _keep_credentials(self) -> None:
        """Write the credentials with which Google's clients get the token: `grant`."""
        document = {
            "type": "authorized_user",
            "client_id": "tpukit-emulator",
            # Google's library for Node.js refuses one that is empty.
            "client_secret": "tpukit-emulator",
            "refresh_token": self._token or "",
        }
        replace_file(self._directory / "credentials.json", encode(document).decode())

    def grant(self, request: ApiRequest) -> ApiReply:
        """Answer who asks for an access token: the refresh token is the emulator's token itself."""
        form = parse_qs(request.body.decode("latin-1"))
        given, token = form.get("refresh_token", [""])[0], self._token or ""
        if not hmac.compare_digest(given.encode(), token.encode()):
            # RFC 6749, section 5.2, in Google's words.
            refusal = {"error": "invalid_grant", "error_description": "Bad Request"}
            return ApiReply(400, encode(refusal))
        answer = {"access_token": token, "expires_in": 3599, "token_type": "Bearer"}
        return ApiReply(200, encode(answer))

    def close(self) -> None:
        if self._listener:
            self._listener.close()
            self._listener = None

    def _opened(self, port: int) -> TlsListener:
        import certifi

        from tpukit.emulator.api.tls import identity
        from tpukit.emulator.api.tls_listener import TlsListener

        listener = _listening(port)
        shown = identity(self._directory / "tls")
        bundle = Path(certifi.where()).read_text("utf-8") + "\n" + shown.authority.read_text()
        replace_file(self._directory / "tls" / "bundle.pem", bundle)
        self._keep_credentials()
        return TlsListener(listener, shown, urlsplit(self._base).port or 0, self._grpc.plain_port)


def _listening(port: int) -> socket.socket:
    """Return a listening socket on the first address of ours that is free.

    127.0.0.1 has to do where the machine answers on no other (macOS without aliases).
    """
    for address in _candidates():
        try:
            return socket.create_server((address, port), backlog=128)
        except PermissionError as error:
            raise ApiError("FAILED_PRECONDITION", _needs(port)) from error
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
    raise ApiError(
        "FAILED_PRECONDITION", f"Port {port} is taken on every address: a server has all of them."
    )


def _candidates() -> Iterator[str]:
    yield from _ADDRESSES
    yield "127.0.0.1"


def _needs(port: int) -> str:
    return (
        f"This account may not listen on port {port}: it takes root, or, on Linux,"
        f" `sysctl net.ipv4.ip_unprivileged_port_start={port}`."
    )
