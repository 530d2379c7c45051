"""Other ways to a worker than TCP: a program's streams, and another worker."""

from __future__ import annotations

import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.ssh_fixtures import Within
from support.ssh_server import Server

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import BadInput, HostKeyMismatch, TransportFailed, Unanswered
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.dial import Dial, iap_command, through_program
from tpukit.ssh.fan_out import fan_out
from tpukit.ssh.forwarding import through_worker
from tpukit.ssh.keys import KeyPair, ensure_key_pair
from tpukit.ssh.target import Target

#: What `gcloud start-iap-tunnel --listen-on-stdin` does, towards a port of this machine.
RELAY = """
import os, socket, sys, threading
print('Testing if tunnel connection works.', file=sys.stderr, flush=True)
far = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
def back():
    while data := far.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    far.sendall(data)
"""
CLOCK = SystemClock()


def elsewhere(server: Server, *host_keys: str) -> Target:
    """Return a target whose address nobody answers at: 192.0.2.0/24 is nobody's (RFC 5737)."""
    keys = host_keys or (server.public,)
    return Target("demo worker 0", 0, "192.0.2.1", server.port, "tester", keys, "host-0", "z-a")


def relay(told: list[str]) -> Dial:
    def words(target: Target) -> list[str]:
        return [sys.executable, "-c", RELAY, str(target.port)]

    return through_program(words, told.append)


def test_a_program_carries_a_connection_and_ends_with_it(
    server: Server, key: KeyPair, within: Within
) -> None:
    told: list[str] = []
    with Connector(key, CLOCK, dial=relay(told)) as connector:
        with connector.connect(elsewhere(server), within(60)) as connection:
            assert connection.run("echo through", deadline=within(60)).text == "through\n"
            (child,) = _relays()
            with connector.connect(elsewhere(server), within(60)) as other:
                assert other.alive
        server.wait_until(lambda: not child.is_running() or child.status() == "zombie", 60)
    assert told == ["Testing if tunnel connection works."]


def test_what_is_at_the_end_of_a_program_has_to_prove_its_key_too(
    server: Server, key: KeyPair, within: Within, tmp_path: Path
) -> None:
    other = " ".join(ensure_key_pair(tmp_path / "other").public.split()[:2])
    with (
        Connector(key, CLOCK, dial=relay([])) as connector,
        pytest.raises(HostKeyMismatch),
    ):
        connector.connect(elsewhere(server, other), within(60))
    assert server.offered == []


def test_a_program_that_is_not_there_is_named(server: Server, key: KeyPair, within: Within) -> None:
    dial = through_program(lambda target: ["tpukit-no-such-program"], lambda line: None)
    with (
        Connector(key, CLOCK, dial=dial) as connector,
        pytest.raises(BadInput, match="tpukit-no-such-program, which cannot be run"),
    ):
        connector.connect(elsewhere(server), within(60))


def test_a_program_that_is_being_replaced_is_tried_again(
    server: Server, key: KeyPair, within: Within, tmp_path: Path
) -> None:
    """As gcloud is while it updates itself: no reason for a watch to end."""
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(f"#!{sys.executable}\n{RELAY}")
    gcloud.chmod(0o755)
    dial = through_program(lambda target: [str(gcloud), str(target.port)], lambda line: None)
    with Connector(key, CLOCK, dial=dial) as connector:
        with connector.connect(elsewhere(server), within(60)) as connection:
            assert connection.alive
        gcloud.unlink()
        with pytest.raises(TransportFailed, match="gcloud cannot be run"):
            connector.connect_once(elsewhere(server), within(60))


def program(*lines: str) -> Dial:
    """Return a dial by a program of Python lines, after which it relays."""
    code = "\n".join(["import sys, time", *lines, RELAY])
    words = [sys.executable, "-c", code]
    return through_program(lambda target: [*words, str(target.port)], lambda line: None)


def test_what_a_program_says_last_is_why_it_leads_nowhere(
    server: Server, key: KeyPair, within: Within
) -> None:
    refused = "ERROR: (gcloud.alpha.compute.start-iap-tunnel) [4033: 'not authorized']."
    dial = program(f"sys.exit({'hint' + chr(10) + refused + chr(10) + 'see the help'!r})")
    with (
        Connector(key, CLOCK, dial=dial) as connector,
        pytest.raises(TransportFailed, match="does not lead to demo worker 0") as failed,
    ):
        connector.connect_once(elsewhere(server), within(60))
    assert failed.value.reason == refused


@pytest.mark.process
def test_the_time_that_a_program_takes_to_start_is_not_the_workers(
    server: Server, key: KeyPair, within: Within
) -> None:
    with (
        Connector(key, CLOCK, attempt_seconds=2.0, dial=program("time.sleep(3)")) as connector,
        connector.connect_once(elsewhere(server), within(60)) as connection,
    ):
        assert connection.alive


@pytest.mark.parametrize("line", ["sys.stdin.read(); sys.exit()", "time.sleep(1000)"])
def test_a_program_that_leads_nowhere_is_left_at_the_deadline_and_ends(
    server: Server, key: KeyPair, within: Within, line: str
) -> None:
    """Also one that does not look at its input yet, as OpenSSH while it connects."""
    with (
        Connector(key, CLOCK, dial=program(line)) as connector,
        pytest.raises(Unanswered, match="did not lead to demo worker 0 in 1 s") as failed,
    ):
        connector.connect_once(elsewhere(server), within(1.0))
    assert failed.value.reason == "a longer --timeout gives it up to 40 s"
    server.wait_until(lambda: all(_ended(relay) for relay in _relays()), 20)


@pytest.mark.process
def test_eight_workers_behind_one_that_is_dead_wait_for_it_once_and_together(
    server: Server, key: KeyPair, within: Within
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, Connector(key, CLOCK) as outside:
        gate = replace(server.target(), label="gate worker 0", port=silent.getsockname()[1])
        tried: list[float] = []

        def connect() -> Connection:
            tried.append(time.monotonic())
            return outside.connect(gate, within(2.0))

        with Connector(key, CLOCK, dial=through_worker(connect)) as connector:
            started = time.monotonic()
            outcomes = fan_out(
                range(8), lambda each: connector.connect_once(elsewhere(server), within(30))
            )
            spent = time.monotonic() - started
            assert {str(outcome.error) for outcome in outcomes} == {
                f"gate worker 0 does not answer at 127.0.0.1:{gate.port}"
            }
            assert (len(tried), spent < 10) == (1, True)
            with pytest.raises(TransportFailed, match="gate worker 0"):  # and is tried again
                connector.connect_once(elsewhere(server), within(30))
            assert len(tried) == 2


def test_who_has_less_time_than_the_worker_that_leads_there_waits_no_longer(
    server: Server, key: KeyPair, within: Within
) -> None:
    over = threading.Event()

    def connect() -> Connection:
        over.wait(60)
        raise TransportFailed("too late")

    with Connector(key, CLOCK, dial=through_worker(connect)) as connector:
        with pytest.raises(TransportFailed, match="demo worker 0 is not reached") as failed:
            connector.connect_once(elsewhere(server), within(0.2))
        over.set()
    assert "the worker that leads there has not answered yet" in failed.value.reason


def test_another_worker_leads_to_one_that_only_it_can_reach(
    server: Server, key: KeyPair, within: Within, tmp_path: Path
) -> None:
    (tmp_path / "inner").mkdir()
    inner = Server(tmp_path / "inner").accept(key)
    server.tunnels = True
    try:
        with Connector(key, CLOCK) as outside:
            dial = through_worker(
                lambda: outside.connect(server.target(), Deadline.after(CLOCK, 60))
            )
            with Connector(key, CLOCK, dial=dial) as connector:
                first = connector.connect(inner.target(), within(60))
                second = connector.connect(inner.target(), within(60))
                assert first.run("pwd", deadline=within(60)).text.strip() == str(inner.home)
                large = second.run("cat", stdin=b"x" * 300_000, deadline=within(60))
                assert len(large.stdout) == 300_000
                assert len(server.connections) == 1
                server.cut()
                again = connector.connect(inner.target(), within(60))
                assert again.run("true", deadline=within(60)).ok
    finally:
        inner.close()


def test_iap_gets_the_line_that_gcloud_itself_uses(server: Server) -> None:
    assert iap_command("p", elsewhere(server)) == [
        "gcloud",
        "alpha",
        "compute",
        "start-iap-tunnel",
        "host-0",
        str(server.port),
        "--listen-on-stdin",
        "--project=p",
        "--zone=z-a",
    ]


def test_iap_needs_the_workers_host_name(server: Server) -> None:
    with pytest.raises(TransportFailed, match="cannot be reached through Identity-Aware Proxy"):
        iap_command("p", server.target())


@pytest.mark.parametrize("name", ["--flags-file=/tmp/f", "host-0\n", "host 0", "%h", "$(id)"])
def test_a_worker_puts_no_word_of_its_own_into_gcloud_s_line(server: Server, name: str) -> None:
    with pytest.raises(TransportFailed, match="cannot be reached through Identity-Aware Proxy"):
        iap_command("p", replace(elsewhere(server), hostname=name))


def _relays() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if RELAY in _command_line(child)]


def _ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # another test has waited for it
        return True


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # a child of another test that ends, or that nobody has waited for yet
        return ""
