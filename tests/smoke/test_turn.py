"""Clients take turns at the devices of a slice, over real connections to a real worker."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote.server import Server

from tpukit.clock import Deadline, SystemClock
from tpukit.remote.keys import ensure_key_pair
from tpukit.remote.ssh import Connector
from tpukit.remote.worker import RemoteWorker
from tpukit.smoke.turn import turn


def within(seconds: float) -> Deadline:
    return Deadline.after(SystemClock(), seconds)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    key = ensure_key_pair(tmp_path / "keys", "tester")
    (tmp_path / "home").mkdir()
    server = Server(tmp_path / "home").accept(key)
    yield server
    server.close()


@pytest.fixture
def worker(server: Server, tmp_path: Path) -> Iterator[RemoteWorker]:
    key = ensure_key_pair(tmp_path / "keys", "tester")
    with Connector(key, SystemClock()) as connector:
        yield RemoteWorker(0, lambda: connector.connect(server.target(), within(60)))


def second_turn(worker: RemoteWorker, seconds: float) -> tuple[threading.Thread, threading.Event]:
    """Ask for the turn in a thread; the event says that it came, or that the wait is over."""
    came = threading.Event()

    def take() -> None:
        with turn(worker, sys.executable, within(seconds)):
            came.set()

    thread = threading.Thread(target=take)
    thread.start()
    return thread, came


def test_the_second_client_waits_until_the_first_is_done(
    server: Server, worker: RemoteWorker
) -> None:
    with turn(worker, sys.executable, within(300)):
        thread, came = second_turn(worker, 300)
        server.wait_until(lambda: len(server.commands) == 2)
        assert not came.wait(0.5)
    assert came.wait(60)
    thread.join(60)


def test_a_client_that_is_lost_in_its_turn_does_not_keep_it(
    server: Server, worker: RemoteWorker
) -> None:
    with turn(worker, sys.executable, within(300)):
        server.cut()
        thread, came = second_turn(worker, 300)
        assert came.wait(60)
    thread.join(60)


def test_the_wait_for_a_turn_ends_at_the_deadline(worker: RemoteWorker) -> None:
    with turn(worker, sys.executable, within(300)):
        thread, came = second_turn(worker, 1.0)
        assert came.wait(60)
    thread.join(60)


def test_a_worker_without_the_interpreter_holds_nobody_up(worker: RemoteWorker) -> None:
    started = time.monotonic()
    with turn(worker, "no/such/python", within(300)):
        assert time.monotonic() - started < 60
