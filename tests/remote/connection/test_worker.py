"""A worker over as many connections as it takes."""

from __future__ import annotations

import pytest
from support.clocks import SteppedClock
from support.ssh_fixtures import Within
from support.ssh_server import Server

from tpukit.clock import Deadline
from tpukit.errors import TransportFailed
from tpukit.remote.connection.client import Connector
from tpukit.remote.connection.worker import RetryingConnection

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
