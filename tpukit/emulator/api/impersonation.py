"""The emulator under Google's host names, for clients that accept no other address."""

from __future__ import annotations

import errno
import hmac
import socket
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

#: The path where clients exchange a refresh token for an access token: RFC 6749, section 6.
TOKEN_PATH = "/token"
_HTTPS = 443
#: No worker has an address with this third octet. macOS without aliases has 127.0.0.1 alone.
_ADDRESSES = (*(f"127.77.255.{number}" for number in range(1, 255)), "127.0.0.1")


class Impersonation:
    """One TLS listener for all services of `GOOGLE_NAMES`, opened on request.

    `base` is a URL of the plain HTTP listener. `directory` holds the files that clients need.
    """

    def __init__(self, base: str, token: str | None, grpc: GrpcListeners, directory: Path) -> None:
        self._base = base
        self._token = token
        self._grpc = grpc
        self._directory = directory
        self._listener: TlsListener | None = None

    def open(self, call: Call) -> Json:
        """Listen on `port` (default: 443), and return the same as `show`.

        A listener that is open already stays. Raises `ApiError` if the port is not available.
        """
        port = call.body.get("port", _HTTPS)
        if not is_whole(port, most=65535):
            raise invalid("port must be a number from 0 to 65535.")
        if self._listener is None:
            self._listener = self._opened(port)
        return self.show(call)

    def show(self, call: Call) -> Json:
        """Return address, port, names and the files that clients need, or {} if it is closed.

        `authority` is the certificate to trust. `bundle` holds it and the public certificates, for
        clients that read only one file. `credentials` are those of an authorized user.
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

    def _write_credentials(self) -> None:
        """Write the credentials that Google's clients exchange for the token (`grant`)."""
        document = {
            "type": "authorized_user",
            "client_id": "tpukit-emulator",
            # Google's library for Node.js refuses an empty secret.
            "client_secret": "tpukit-emulator",
            "refresh_token": self._token or "",
        }
        replace_file(self._directory / "credentials.json", encode(document).decode())

    def grant(self, request: ApiRequest) -> ApiReply:
        """Answer a request for an access token; the refresh token is the emulator's token too."""
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
        self._write_credentials()
        return TlsListener(listener, shown, urlsplit(self._base).port or 0, self._grpc.plain_port)


def _listening(port: int) -> socket.socket:
    """Return a listening socket on the first free address."""
    for address in _ADDRESSES:
        try:
            return socket.create_server((address, port), backlog=128)
        except PermissionError as error:
            raise ApiError("FAILED_PRECONDITION", _needs(port)) from error
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
    raise ApiError(
        "FAILED_PRECONDITION", f"Port {port} is in use on every address of this machine."
    )


def _needs(port: int) -> str:
    return (
        f"This account may not listen on port {port}. Run the emulator as root or, on Linux,"
        f" run `sysctl net.ipv4.ip_unprivileged_port_start={port}`."
    )
