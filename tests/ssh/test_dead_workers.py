"""Workers that do not answer keep nobody out, however many they are."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace

import pytest
from support.ssh_fixtures import Within
from support.ssh_server import Server

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import TransportFailed, Unanswered
from tpukit.ssh.client import HANDSHAKES, Connector
from tpukit.ssh.dial import direct
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.target import Target


def test_who_waits_behind_workers_that_never_greet_leaves_at_its_own_deadline(
    key: KeyPair, server: Server, within: Within
) -> None:
    alive = server.target()
    with socket.create_server(("127.0.0.1", 0), backlog=HANDSHAKES) as silent:
        mute = replace(alive, port=silent.getsockname()[1])

        def hang() -> None:
            with contextlib.suppress(TransportFailed):
                connector.connect_once(mute, within(60))

        with Connector(key, SystemClock(), attempt_seconds=60.0) as connector:
            for _ in range(HANDSHAKES):
                threading.Thread(target=hang, daemon=True).start()
            greeted = [silent.accept()[0] for _ in range(HANDSHAKES)]
            for each in greeted:
                assert each.recv(4) == b"SSH-"  # its handshake has begun
            with pytest.raises(Unanswered):
                connector.connect_once(alive, within(0.3))
            for each in greeted:
                each.close()
            connector.connect_once(alive, within(60)).close()


def test_a_worker_that_answers_is_reached_beside_more_dead_ones_than_handshakes(
    key: KeyPair, server: Server, within: Within
) -> None:
    alive, over = server.target(), threading.Event()
    waiting = threading.Semaphore(0)

    def dial(target: Target, attempt: Deadline) -> socket.socket:
        if target.address == alive.address and target.port == alive.port:
            return direct(target, attempt)
        waiting.release()
        over.wait(60)
        raise TimeoutError("nothing answers")

    dead = Target("dead worker", 1, "192.0.2.1", 22, alive.user, alive.host_keys)
    with Connector(key, SystemClock(), dial=dial) as connector:

        def try_dead() -> None:
            try:
                connector.connect_once(dead, within(60)).close()
            except Exception:  # noqa: BLE001  what becomes of them is not the claim
                return

        threads = [threading.Thread(target=try_dead, daemon=True) for _ in range(HANDSHAKES + 1)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert waiting.acquire(timeout=30)
        try:
            with connector.connect_once(alive, within(30)) as connection:
                assert connection.alive
        finally:
            over.set()
        for thread in threads:
            thread.join(30)
