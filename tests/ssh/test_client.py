"""Connecting: who is trusted, what is offered, what is tried again."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import asyncssh
import paramiko
import pytest
from support.clocks import SteppedClock, one_attempt
from support.ssh_fixtures import Within
from support.ssh_server import Server

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import (
    AuthenticationFailed,
    HostKeyMismatch,
    SecurityRefusal,
    TransportFailed,
)
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.dial import direct
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.target import Target


def public(kind: str) -> str:
    line = asyncssh.generate_private_key(kind).export_public_key().decode()
    return " ".join(line.split()[:2])


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A socket that keeps its port for itself and does not listen there."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield found


def port_of(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def target_at(port: int, address: str = "127.0.0.1") -> Target:
    return Target("demo worker 3", 3, address, port, "tester", (public("ssh-ed25519"),))


def test_only_our_key_is_offered_and_only_once(connection: Connection, server: Server) -> None:
    assert connection.alive
    assert server.offered == list(server.accepted)


def test_a_connection_that_is_made_after_the_end_is_closed(key: KeyPair, server: Server) -> None:
    def dial(target: Target, deadline: Deadline) -> socket.socket:
        connector.close()
        return direct(target, deadline)

    connector = Connector(key, SystemClock(), dial=dial)
    late = connector.connect(server.target(), Deadline.after(SystemClock(), 60))
    assert not late.alive


def test_the_agreed_cipher_is_an_authenticated_one(connection: Connection, server: Server) -> None:
    assert connection.alive
    assert server.ciphers == ["aes128-gcm@openssh.com"]


def test_weak_algorithms_are_not_offered(key: KeyPair) -> None:
    """What the client sends is read off the wire, before any server could choose from it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent: list[bytes] = []

        def listen() -> None:
            peer, _ = listener.accept()
            peer.settimeout(60)
            with peer, suppress(OSError):
                peer.sendall(b"SSH-2.0-probe\r\n")
                while b"none" not in b"".join(sent) and (data := peer.recv(65536)):
                    sent.append(data)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        clock = one_attempt()
        with (
            Connector(key, clock, attempt_seconds=60) as connector,
            pytest.raises(TransportFailed),
        ):
            connector.connect(target_at(port_of(listener)), Deadline.after(clock, 60))
        thread.join(60)
    offer = b"".join(sent)
    assert b"ssh-ed25519" in offer
    for weak in (b"cbc", b"3des", b"md5", b"sha1,", b"hmac-sha1", b"ssh-rsa", b"rsa-sha2", b"zlib"):
        assert weak not in offer


@pytest.mark.parametrize("kind", ["ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa"])
def test_a_pinned_key_of_each_type_is_accepted(
    tmp_path: Path, key: KeyPair, connector: Connector, within: Within, kind: str
) -> None:
    server = Server(tmp_path, asyncssh.generate_private_key(kind)).accept(key)
    try:
        assert connector.connect(server.target(), within(60)).alive
    finally:
        server.close()


def test_an_impostor_is_refused_before_our_key_is_used(
    connector: Connector, server: Server, within: Within
) -> None:
    pinned = public("ssh-ed25519")
    with pytest.raises(HostKeyMismatch) as refused:
        connector.connect(server.target(pinned), within(30))
    assert server.offered == []
    assert len(server.ciphers) == 0
    assert refused.value.exit_code == 9
    assert "is not demo worker 0" in refused.value.what
    assert "SHA256:" in refused.value.reason
    assert "delete the slice and create it again" in str(refused.value.fix)


def test_a_server_without_a_key_of_the_pinned_type_is_refused(
    connector: Connector, server: Server, within: Within
) -> None:
    with pytest.raises(HostKeyMismatch, match="is not demo worker 0"):
        connector.connect(server.target(public("ecdsa-sha2-nistp256")), within(30))
    assert server.offered == []


def test_one_matching_key_among_several_is_enough(
    connector: Connector, server: Server, within: Within
) -> None:
    pinned = (public("ssh-rsa"), public("ssh-ed25519"), server.public)
    assert connector.connect(server.target(*pinned), within(60)).alive


def test_a_worker_without_a_known_host_key_is_not_connected_to(
    connector: Connector, server: Server, within: Within
) -> None:
    for pinned in [(), ("ssh-dss AAAA",), ("nonsense",)]:
        target = Target("demo worker 0", 0, "127.0.0.1", server.port, "tester", pinned)
        with pytest.raises(SecurityRefusal, match="no host key of demo worker 0"):
            connector.connect(target, within(30))
        assert server.connections == []


def test_a_refused_connection_is_tried_until_the_deadline(
    key: KeyPair, silent: socket.socket
) -> None:
    clock = SteppedClock()
    with Connector(key, clock) as connector, pytest.raises(TransportFailed) as failed:
        connector.connect(target_at(port_of(silent)), Deadline.after(clock, 20))
    assert clock.pauses == [1, 1.5, 2.25, 3.375, 5, 5, 1.875]
    assert failed.value.what.startswith("demo worker 3 does not answer at 127.0.0.1:")
    assert failed.value.reason == "connection refused"
    assert failed.value.why == "7 attempts in 20 s"
    assert failed.value.exit_code == 255


def test_a_server_that_starts_late_is_waited_for(
    tmp_path: Path, key: KeyPair, silent: socket.socket
) -> None:
    port, started = port_of(silent), []
    host_key = asyncssh.generate_private_key("ssh-ed25519")

    def between(count: int) -> None:
        if count == 3:
            silent.close()
            started.append(Server(tmp_path, host_key, port).accept(key))

    clock = SteppedClock(between)
    line = " ".join(host_key.export_public_key().decode().split()[:2])
    target = Target("demo worker 0", 0, "127.0.0.1", port, "tester", (line,))
    with Connector(key, clock) as connector:
        assert connector.connect(target, Deadline.after(clock, 60)).alive
    started[0].close()
    assert len(clock.pauses) == 3


def test_a_key_that_takes_time_to_propagate_is_waited_for(tmp_path: Path, key: KeyPair) -> None:
    server = Server(tmp_path)
    clock = SteppedClock(lambda count: server.accept(key) if count == 2 else None)
    with Connector(key, clock) as connector:
        assert connector.connect(server.target(), Deadline.after(clock, 60)).alive
    server.close()
    assert len(server.offered) == 3
    assert set(server.offered) == server.accepted


def test_a_key_that_is_never_accepted_is_an_authentication_failure(
    tmp_path: Path, key: KeyPair
) -> None:
    server, clock = Server(tmp_path), SteppedClock()
    with Connector(key, clock) as connector, pytest.raises(AuthenticationFailed) as failed:
        connector.connect(server.target(), Deadline.after(clock, 2))
    server.close()
    assert failed.value.what == "demo worker 0 does not accept our key for user tester"
    assert failed.value.why == "2 attempts in 2 s"


class Undecided(paramiko.ServerInterface):
    """A server that proves its host key, and says nothing of ours until it is over."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def check_auth_publickey(self, username: str, key: object) -> int:
        self.over.wait(60)
        return int(paramiko.AUTH_FAILED)


def test_who_falls_silent_after_the_greeting_is_late_and_did_answer(
    key: KeyPair, within: Within
) -> None:
    ours, theirs = socket.socketpair()
    host_key, undecided = paramiko.ECDSAKey.generate(), Undecided()
    peer = paramiko.Transport(theirs)
    peer.add_server_key(host_key)
    peer.start_server(event=threading.Event(), server=undecided)
    line = f"{host_key.get_name()} {host_key.get_base64()}"
    target = Target("demo worker 0", 0, "127.0.0.1", 22, "tester", (line,))
    with (
        Connector(key, SystemClock(), attempt_seconds=1.0, dial=lambda *_: ours) as connector,
        pytest.raises(TransportFailed) as failed,
    ):
        connector.connect_once(target, within(60))
    undecided.over.set()
    peer.close()
    assert (type(failed.value), failed.value.reason) == (TransportFailed, "timed out")


@pytest.mark.parametrize(
    ("greeting", "cause"),
    [(b"", "no SSH server greeted us"), (b"HTTP/1.1 400 \x1b[31m\r\n\r\n", "no SSH server")],
)
def test_something_that_is_no_ssh_server_is_named_as_such(
    key: KeyPair, greeting: bytes, cause: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            peer, _ = listener.accept()
            with peer, suppress(OSError):
                peer.sendall(greeting)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):  # unread bytes would make the end of it a reset
                    pass

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        clock = one_attempt()
        connector = Connector(key, clock, attempt_seconds=60)
        with pytest.raises(TransportFailed) as failed:
            connector.connect(target_at(port_of(listener)), Deadline.after(clock, 60))
        thread.join(60)
    assert failed.value.reason.startswith(cause)
    assert "\x1b" not in failed.value.reason


def test_a_server_that_never_greets_costs_one_attempt_not_the_command(
    key: KeyPair, within: Within
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connector = Connector(key, SystemClock(), attempt_seconds=0.3)
        with pytest.raises(TransportFailed) as failed:
            connector.connect(target_at(listener.getsockname()[1]), within(0.5))
    assert failed.value.details["attempts"] >= 1


def test_a_name_in_place_of_an_address_is_not_looked_up(
    connector: Connector,
) -> None:
    with pytest.raises(TransportFailed, match="has no IP address") as failed:
        connector.connect(target_at(22, "localhost"), Deadline.never(SystemClock()))
    assert failed.value.reason == "localhost"
    with pytest.raises(TransportFailed, match="has no IP address"):
        connector.connect_once(target_at(22, "localhost"), Deadline.never(SystemClock()))


def test_closing_the_connector_closes_its_connections(
    connector: Connector, server: Server, within: Within
) -> None:
    connections = [connector.connect(server.target(), within(60)) for _ in range(3)]
    connector.close()
    assert not any(connection.alive for connection in connections)
    with pytest.raises(TransportFailed):
        connections[0].run("true", deadline=within(5))


def test_paramiko_is_imported_without_what_it_can_do_without() -> None:
    program = (
        "import sys; import tpukit.ssh.transport, paramiko.config; "
        "assert isinstance(paramiko.config.invoke_import_error, ImportError); "
        "lean = 'invoke' not in sys.modules and 'asyncio' not in sys.modules; "
        "import invoke; sys.exit(not lean)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_importing_the_client_does_not_import_paramiko() -> None:
    program = "import sys; from tpukit.ssh import client, openssh; "
    program += "from tpukit.jobs import detached_job; "
    program += "sys.exit('paramiko' in sys.modules or 'cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
