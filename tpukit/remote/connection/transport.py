"""From a connected socket to an authenticated transport; the one module that imports paramiko."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from tpukit.clock import Deadline
from tpukit.errors import AuthenticationFailed
from tpukit.remote.connection.handshake import (
    check_host_key,
    mismatch,
    no_answer,
    place,
    restrict,
    seconds,
    unanswered,
)
from tpukit.remote.connection.target import Target
from tpukit.remote.connection.watchdog import WatchedSocket
from tpukit.text import one_line

# A third of the time to import paramiko goes into what only `Match exec` of ssh_config needs, and
# paramiko does without where it is not installed: paramiko 5.1, paramiko/config.py.
try:
    sys.modules.setdefault("invoke", None)  # type: ignore[arg-type]
    import paramiko
    from paramiko.common import MSG_CHANNEL_REQUEST, cMSG_CHANNEL_REQUEST
finally:
    if sys.modules["invoke"] is None:
        del sys.modules["invoke"]

#: Everything paramiko raises when a peer misbehaves or a connection ends.
FAILURES: tuple[type[Exception], ...] = (paramiko.SSHException, EOFError, OSError)

#: Bytes a worker may send ahead of our reading: 100 Mbit/s over 150 ms keeps 2 MB in flight.
_WINDOW = 8 << 20
#: Seconds before the end of an attempt in which paramiko may notice it.
_MOMENT = 0.5
_LOG = "tpukit.remote.connection.client"
# paramiko logs what peers say at error level; without a handler Python prints that to stderr, raw.
logging.getLogger(_LOG).addHandler(logging.NullHandler())


def private_key(path: Path) -> Any:
    """Load a private key without a passphrase.

    Raises `AuthenticationFailed` where it is none, or has one.
    """
    try:
        return paramiko.PKey.from_path(path)
    except (*FAILURES, paramiko.pkey.UnknownKeyType, ValueError, TypeError) as error:
        what = f"the private key {one_line(str(path))} cannot be used"
        raise AuthenticationFailed(what, reason=one_line(str(error))) from error


def authenticated(
    watched: WatchedSocket, target: Target, pinned: tuple[str, ...], private: Any, attempt: Deadline
) -> Any:
    """Return a transport whose server proved a pinned host key and accepted our key.

    Raises:
        HostKeyMismatch: before our key was used.
        AuthenticationFailed, TransportFailed: worth another try.
    """
    transport = paramiko.Transport(watched, default_window_size=_WINDOW)
    transport.set_log_channel(_LOG)
    restrict(transport.get_security_options(), pinned)
    _report_signals(transport)
    _skip_unused(transport)
    try:
        _prove(transport, target, pinned, attempt)
        _authenticate(transport, target, private, attempt)
    except BaseException:
        transport.close()
        raise
    watched.ask_with(lambda: transport.global_request("keepalive@openssh.com", wait=True))
    return transport


def request_command(channel: Any, command: str) -> None:
    """Ask for a command and wait for no answer: a refusal closes the channel.

    paramiko's exec_command waits, without an end of its own, for what only says that the command
    is about to start.
    """
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exec")
    message.add_boolean(True)
    message.add_string(command.encode("utf-8", "surrogateescape"))
    channel.transport._send_user_message(message)


def _prove(transport: Any, target: Target, pinned: tuple[str, ...], attempt: Deadline) -> None:
    """Agree on keys and check the server's, before anything else is said."""
    transport.banner_timeout = transport.handshake_timeout = seconds(attempt)
    try:
        transport.start_client(timeout=seconds(attempt))
        key = transport.get_remote_server_key()
    except paramiko.ssh_exception.IncompatiblePeer as error:
        if "host key" in str(error):
            raise mismatch(target, pinned, "it has no host key of a published type") from error
        raise no_answer(target, error) from error
    except FAILURES as error:
        # A middlebox, as the emulator, may accept a connection whose packets it then drops.
        silent = not transport.remote_version and attempt.remaining() < _MOMENT
        raise (unanswered(target) if silent else no_answer(target, error)) from error
    check_host_key(target, pinned, key.get_name(), key.get_base64())


def _authenticate(transport: Any, target: Target, private: Any, attempt: Deadline) -> None:
    transport.auth_timeout = transport.channel_timeout = seconds(attempt)
    with contextlib.suppress(*FAILURES):
        transport.auth_publickey(target.user, private)
    if transport.is_authenticated():
        return
    if transport.is_active() and not attempt.passed():
        what = f"{target.label} does not accept our key for user {target.user}"
        raise AuthenticationFailed(what, reason=place(target))
    raise no_answer(target, TimeoutError() if attempt.passed() else EOFError())


def _skip_unused(transport: Any) -> None:
    """Leave out what paramiko spends on every connection, and nobody sees.

    A server's debug messages are turned into text one byte after the other and then not logged
    (paramiko/paramiko:paramiko/util.py, safe_string). A thread is started to time the handshake
    (paramiko/packet.py, start_handshake): our deadline does.
    """
    transport._parse_debug = lambda message: None
    transport.packetizer.start_handshake = lambda timeout: None


def _report_signals(transport: Any) -> None:
    """Make a command that a signal ended report 128 + n.

    paramiko ignores `exit-signal`, which leaves -1 as after a lost connection
    (paramiko/paramiko:paramiko/channel.py, _handle_request); an out-of-memory kill is one.
    """
    handlers = dict(transport._channel_handler_table)
    ordinary = handlers[MSG_CHANNEL_REQUEST]

    def handle(channel: Any, message: Any) -> None:
        before = message.get_so_far()
        if message.get_text() != "exit-signal":
            message.rewind()
            message.get_bytes(len(before))
            ordinary(channel, message)
            return
        message.get_boolean()
        channel.exit_status = 128 + _signal_number(message.get_text())
        channel.status_event.set()

    handlers[MSG_CHANNEL_REQUEST] = handle
    transport._channel_handler_table = handlers


def _signal_number(name: str) -> int:
    known = {each.name: each.value for each in signal.Signals}
    return known.get(f"SIG{name}", 0)
