"""Makes an authenticated transport of a connected socket, with paramiko."""

from __future__ import annotations

import contextlib
import logging
import signal
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from tpukit.clock import Deadline
from tpukit.errors import AuthenticationFailed
from tpukit.ssh.handshake import (
    fingerprint,
    mismatch,
    no_answer,
    place,
    restrict,
    seconds,
)
from tpukit.ssh.target import Target
from tpukit.ssh.watchdog import WatchedSocket

# Importing `invoke` takes a third of paramiko's import time. paramiko needs it only for
# `Match exec` of ssh_config, and works without it: paramiko 5.1, paramiko/config.py.
try:
    sys.modules.setdefault("invoke", None)  # type: ignore[arg-type]
    import paramiko as paramiko
    from paramiko.auth_handler import AuthHandler
    from paramiko.common import (
        MSG_CHANNEL_REQUEST,
        cMSG_CHANNEL_REQUEST,
        cMSG_CHANNEL_WINDOW_ADJUST,
    )
finally:
    if sys.modules["invoke"] is None:
        del sys.modules["invoke"]

#: All exceptions of paramiko for a misbehaving peer or a lost connection.
FAILURES: tuple[type[Exception], ...] = (paramiko.SSHException, EOFError, OSError)

#: Bytes a worker may send ahead of our reading: 100 Mbit/s over 150 ms keeps 2 MB in flight.
_WINDOW = 8 << 20
#: paramiko may notice the end of an attempt this many seconds too early.
_MOMENT = 0.5
_LOG = "tpukit.ssh.client"
# paramiko logs messages of peers as errors; without a handler, Python would print them to stderr.
logging.getLogger(_LOG).addHandler(logging.NullHandler())


def authenticated(
    watched: WatchedSocket, target: Target, pinned: tuple[str, ...], private: Any, attempt: Deadline
) -> Any:
    """Return a transport after the server has proved a pinned host key and accepted our key.

    Raises:
        HostKeyMismatch: the server has another host key; our key was not used.
        AuthenticationFailed, TransportFailed: another attempt may succeed.
    """
    transport = _Transport(watched)
    restrict(transport.get_security_options(), pinned)
    try:
        _prove(transport, target, pinned, attempt)
        _authenticate(transport, target, private, attempt)
    except BaseException:
        transport.close()
        raise
    watched.ask = lambda: transport.global_request("keepalive@openssh.com", wait=True)
    return transport


def request_command(channel: Any, command: str) -> None:
    """Request a command without waiting for the answer; a refusal closes the channel.

    paramiko's exec_command waits without limit for a reply that says only that the command will
    start.
    """
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exec")
    message.add_boolean(True)
    message.add_string(command.encode("utf-8", "surrogateescape"))
    channel.transport._send_user_message(message)


def _prove(transport: Any, target: Target, pinned: tuple[str, ...], attempt: Deadline) -> None:
    """Negotiate keys and check the server's host key before anything else."""
    transport.banner_timeout = transport.handshake_timeout = seconds(attempt)
    try:
        transport.start_client(timeout=seconds(attempt))
        key = transport.get_remote_server_key()
    except FAILURES as error:
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer) and "host key" in str(error):
            raise mismatch(target, pinned, "it has no host key of a published type") from error
        # A middlebox, like the emulator, may accept a connection and then drop its packets.
        silent = not transport.remote_version and attempt.remaining() < _MOMENT
        raise no_answer(target, TimeoutError() if silent else error) from error
    shown = f"{key.get_name()} {key.get_base64()}"
    if pinned and shown not in pinned:
        raise mismatch(target, pinned, f"its host key is {fingerprint(shown)}")


def _authenticate(transport: Any, target: Target, private: Any, attempt: Deadline) -> None:
    # The worker may know the key, and not the authority of the certificate beside it.
    for plain in (False, True) if private.public_blob else (True,):
        transport.auth_timeout = transport.channel_timeout = seconds(attempt)
        transport.auth_handler = OneTrip(transport, plain)
        answered = threading.Event()
        with contextlib.suppress(*FAILURES):
            transport.auth_handler.auth_publickey(target.user, private, answered)
            transport.auth_handler.wait_for_response(answered)
        if transport.is_authenticated():
            return
        if attempt.passed() or not transport.is_active():
            break
    if transport.is_active() and not attempt.passed():
        what = f"{target.label} does not accept our key for user {target.user}"
        raise AuthenticationFailed(what, reason=place(target))
    late = "timed out" if attempt.passed() else ""  # not `Unanswered`: the server has answered
    raise no_answer(target, EOFError(late))


def _handle_request(channel: Any, message: Any) -> None:
    """Set the exit status 128 + n for a command that a signal ended, such as a lack of memory.

    paramiko ignores `exit-signal`, and leaves -1 as after a lost connection
    (paramiko/paramiko:paramiko/channel.py, _handle_request).
    """
    request = paramiko.Message(message.get_remainder())
    if request.get_text() != "exit-signal":
        channel._handle_request(message)
        return
    request.get_boolean()
    name = f"SIG{request.get_text()}"
    channel.exit_status = 128 + {known.name: known.value for known in signal.Signals}.get(name, 0)
    channel.status_event.set()


class _Transport(paramiko.Transport):  # type: ignore[misc]
    """paramiko's transport, with the behaviour of OpenSSH and without costs that have no use.

    tests/ssh/test_paramiko_contract.py checks the undocumented parts in use.
    """

    _channel_handler_table: ClassVar[dict[int, Callable[[Any, Any], None]]] = {
        **paramiko.Transport._channel_handler_table,
        MSG_CHANNEL_REQUEST: _handle_request,
    }

    def __init__(self, connected: WatchedSocket) -> None:
        super().__init__(connected, default_window_size=_WINDOW)
        self.set_log_channel(_LOG)
        # paramiko would start a thread to time the handshake; the deadline already limits it.
        self.packetizer.start_handshake = lambda timeout: None

    def _send_message(self, message: Any) -> None:
        """Send it, but no larger window for a channel that is already closed here.

        A reader's thread may send one after another thread has sent the close. OpenSSH ignores it;
        strict servers such as AsyncSSH's end the whole connection (RFC 4254, section 5.3).
        """
        kind, number = struct.unpack(">cI", message.asbytes()[:5].ljust(5))
        if kind != cMSG_CHANNEL_WINDOW_ADJUST or any(
            channel.remote_chanid == number and not channel.closed
            for channel in self._channels.values()
        ):
            super()._send_message(message)

    def _parse_debug(self, message: Any) -> None:
        """Ignore it: paramiko would convert it byte by byte, without logging it."""


class OneTrip(AuthHandler):  # type: ignore[misc]
    """Requests authentication and offers the key at once, which saves a round trip.

    If the server refuses the request, it disconnects (RFC 4253, section 10). A `plain` key is
    offered without the certificate that it may have.
    """

    def __init__(self, transport: Any, plain: bool = False) -> None:
        super().__init__(transport)
        self._plain = plain

    def _get_key_type_and_bits(self, key: Any) -> tuple[str, Any]:
        return (key.get_name(), key) if self._plain else super()._get_key_type_and_bits(key)

    def _request_auth(self) -> None:
        super()._request_auth()
        accepted = paramiko.Message()
        accepted.add_string("ssh-userauth")
        accepted.rewind()
        super()._parse_service_accept(accepted)

    def _parse_service_accept(self, message: Any) -> None:
        """Do nothing: the key has already been sent."""
