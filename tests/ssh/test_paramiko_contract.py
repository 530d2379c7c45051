"""What we rely on in paramiko beyond its documentation, each as it was seen in 5.1.0.

pyproject.toml holds paramiko below the next major release. Where one of these fails, look at what
`transport`, `channel` and `watchdog` do there before the range is widened.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.auth_handler import AuthHandler
from paramiko.common import (
    MSG_CHANNEL_REQUEST,
    MSG_DEBUG,
    MSG_SERVICE_ACCEPT,
    MSG_SERVICE_REQUEST,
    MSG_USERAUTH_REQUEST,
)
from support.openssh_server import new_key
from support.processes import eventually

from tpukit.ssh.transport import OneTrip, request_command
from tpukit.ssh.watchdog import WatchedSocket

ROOT = Path(__file__).parents[2]
SEEN_IN = (5, 1)
SECONDS = 30.0

Ends = tuple[paramiko.Transport, paramiko.Transport]


class Peer(paramiko.ServerInterface):
    """A server of paramiko's own that admits everybody; it remembers what it is asked to run."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []

    def check_auth_publickey(self, username: str, key: object) -> int:
        return int(paramiko.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: object, command: bytes) -> bool:
        self.commands.append(command)
        return True


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def key(tmp_path: Path) -> paramiko.PKey:
    (tmp_path / "key").write_text(new_key()[0])
    return paramiko.PKey.from_path(tmp_path / "key")


@pytest.fixture
def ends(peer: Peer, key: paramiko.PKey) -> Iterator[Ends]:
    """A client that has not begun, and a server that waits for it."""
    ours, theirs = socket.socketpair()
    client, server = paramiko.Transport(ours), paramiko.Transport(theirs)
    server.add_server_key(key)
    server.start_server(event=threading.Event(), server=peer)
    yield client, server
    client.close()
    server.close()


@pytest.fixture
def channel(ends: Ends, key: paramiko.PKey) -> Any:
    """A session whose server has done nothing with it yet."""
    client, _ = ends
    client.connect(username="tester", pkey=key)
    return client.open_session(timeout=SECONDS)


def theirs(ends: Ends) -> Any:
    """The server's end of the session."""
    return ends[1].accept(SECONDS)


def test_the_range_in_pyproject_begins_with_the_release_all_this_was_seen_in() -> None:
    line = re.search(r'"paramiko>=(\d+)\.(\d+),<(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert line
    assert tuple(map(int, line.groups())) == (*SEEN_IN, SEEN_IN[0] + 1)
    assert SEEN_IN <= tuple(map(int, paramiko.__version__.split(".")[:2])) < (SEEN_IN[0] + 1, 0)


def test_debug_messages_and_the_handshakes_timer_go_through_what_we_replace(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = ends
    started: list[float] = []
    debugged = threading.Event()
    client.packetizer.start_handshake = started.append
    monkeypatch.setattr(client, "_parse_debug", lambda message: debugged.set())
    client.start_client(timeout=SECONDS)
    assert started == [client.handshake_timeout]
    assert not client.packetizer.handshake_timed_out()
    message = paramiko.Message()
    message.add_byte(bytes([MSG_DEBUG]))
    message.add_boolean(True)
    message.add_string("said")
    message.add_string("en")
    server._send_user_message(message)
    assert debugged.wait(SECONDS)


def test_authentication_begins_with_a_request_whose_answer_sends_the_key(
    ends: Ends, key: paramiko.PKey
) -> None:
    client, _ = ends
    sent: list[int] = []

    class Recorder(AuthHandler):
        def _request_auth(self) -> None:
            sent.append(MSG_SERVICE_REQUEST)
            super()._request_auth()

        def _parse_service_accept(self, message: Any) -> None:
            sent.append(MSG_SERVICE_ACCEPT)
            super()._parse_service_accept(message)

    client.start_client(timeout=SECONDS)
    client.auth_handler = handler = Recorder(client)
    answered = threading.Event()
    handler.auth_publickey("tester", key, answered)
    client.auth_timeout = SECONDS
    assert handler.wait_for_response(answered) == []
    assert sent == [MSG_SERVICE_REQUEST, MSG_SERVICE_ACCEPT]
    assert client.is_authenticated()


def test_our_key_does_not_wait_for_that_answer(
    ends: Ends, key: paramiko.PKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = ends
    client.start_client(timeout=SECONDS)
    sent: list[int] = []
    monkeypatch.setattr(client, "_send_message", lambda message: sent.append(message.asbytes()[0]))
    OneTrip(client).auth_publickey("tester", key, threading.Event())
    assert sent == [MSG_SERVICE_REQUEST, MSG_USERAUTH_REQUEST]


def test_a_command_is_asked_for_by_a_message_of_our_own(
    ends: Ends, channel: Any, peer: Peer
) -> None:
    request_command(channel, "true")
    eventually(lambda: peer.commands == [b"true"], SECONDS)


def test_a_transport_looks_requests_up_in_a_table_that_a_class_of_ours_may_change(
    channel: Any, ends: Ends
) -> None:
    """exit-signal is not among those that paramiko knows: where it is one day, ours can go."""
    table = paramiko.Transport._channel_handler_table
    assert table[MSG_CHANNEL_REQUEST] is paramiko.Channel._handle_request
    seen: list[str] = []

    def handle(channel: Any, message: Any) -> None:
        before = message.get_so_far()
        seen.append(message.get_text())
        message.rewind()
        message.get_bytes(len(before))
        table[MSG_CHANNEL_REQUEST](channel, message)

    ends[0]._channel_handler_table = {**table, MSG_CHANNEL_REQUEST: handle}
    server = theirs(ends)
    message = paramiko.Message()
    message.add_byte(bytes([MSG_CHANNEL_REQUEST]))
    message.add_int(server.remote_chanid)
    message.add_string("exit-signal")
    message.add_boolean(False)
    message.add_string("KILL")
    server.transport._send_user_message(message)
    server.close()
    assert channel.status_event.wait(SECONDS)
    assert (seen, channel.exit_status) == (["exit-signal"], -1)


def test_both_buffers_of_a_channel_wake_one_event_for_data_and_for_the_end(
    channel: Any, ends: Ends
) -> None:
    woken = threading.Event()
    for buffer in (channel.in_buffer, channel.in_stderr_buffer):
        buffer.set_event(woken)
    server = theirs(ends)
    for act in (server.sendall, server.sendall_stderr):
        woken.clear()
        act(b"x")
        assert woken.wait(SECONDS)
    assert (channel.recv(9), channel.recv_stderr(9)) == (b"x", b"x")
    woken.clear()
    server.close()
    assert woken.wait(SECONDS)
    assert channel.eof_received


def test_a_channel_counts_what_the_peer_will_still_take(channel: Any, ends: Ends) -> None:
    taking = theirs(ends)
    before = channel.out_window_size
    channel.sendall(b"x" * 1000)
    assert (before > 1000, channel.out_window_size) == (True, before - 1000)
    assert taking.recv(1) == b"x"


class Closed:
    """A socket that notes who asks whether it is closed."""

    asked = False

    @property
    def _closed(self) -> bool:
        self.asked = True
        return True

    def close(self) -> None:
        return


def test_a_socket_that_says_it_is_closed_is_not_waited_for(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else stop_thread would wait for a thread that waits for a frozen peer."""
    client, _ = ends
    client.start_client(timeout=SECONDS)
    closed = Closed()
    monkeypatch.setattr(client, "sock", closed)
    monkeypatch.setattr(client, "is_alive", lambda: True)
    monkeypatch.setattr(client.packetizer, "close", lambda: None)
    client.stop_thread()
    client.active = True
    assert closed.asked
    assert hasattr(WatchedSocket(socket.socket(), SECONDS), "_closed")
