"""A worker over as many connections as it takes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.clocks import SteppedClock
from support.ssh_fixtures import Within
from support.ssh_server import Server

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import TransportFailed
from tpukit.ssh.client import Connector
from tpukit.ssh.worker import RemoteWorker, RetryingConnection, listed

pytestmark = pytest.mark.process


def test_what_brings_nothing_is_tried_five_times_with_growing_pauses(
    connector: Connector, server: Server, within: Within
) -> None:
    clock, server.loses = SteppedClock(), lambda number: True
    deadline = Deadline.after(clock, 60)
    with (
        RetryingConnection(lambda: connector.connect(server.target(), within(60)), deadline) as one,
        pytest.raises(TransportFailed, match="while a command ran"),
    ):
        one.run("true")
    assert clock.pauses == [0.5, 1.0, 1.5, 2.0]
    assert server.commands == ["true"] * 5


def test_of_two_threads_that_lose_a_connection_one_may_have_made_another_one() -> None:
    """The slower one does not let go of that one unclosed, nor do they meet over nothing."""
    made: list[Any] = []
    closing, closes = threading.Event(), threading.Event()

    def close(connection: Any) -> None:
        connection.alive = False
        if connection is made[0] and not closing.is_set():
            closing.set()
            closes.wait(60)

    def connect() -> Any:
        made.append(SimpleNamespace(alive=True))
        made[-1].close = lambda each=made[-1]: close(each)
        return made[-1]

    link = RetryingConnection(connect, Deadline.never(SystemClock()))
    assert link.connection is made[0]
    slower = threading.Thread(target=link.close, daemon=True)
    slower.start()
    assert closing.wait(60)
    assert link.connection is made[1]
    closes.set()
    slower.join(60)
    link.close()
    assert [connection.alive for connection in made] == [False, False]


def test_workers_are_named_in_ranges_and_by_slice() -> None:
    def of(slice_: str, *indexes: int) -> list[RemoteWorker]:
        return [
            RemoteWorker(index, lambda: pytest.fail("nobody connects"), slice_) for index in indexes
        ]

    assert listed(of("demo", 3)) == "demo worker 3"
    assert listed(of("demo", 2, 0, 3, 4)) == "demo worker 0,2-4"
    assert listed(of("a", 0, 1) + of("b", 5)) == "a worker 0-1, b worker 5"
