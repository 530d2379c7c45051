"""Clouds for the tests of the client: one on a fake clock, one on the machine's own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_cloud import Cloud, FakeClock, running_cloud

# A shell that starts the tests in the background has INT ignored, and so would everything that they
# start: Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cloud(tmp_path: Path, clock: FakeClock) -> Iterator[Cloud]:
    """A cloud where a create takes 30 seconds that nobody waits for."""
    with running_cloud(tmp_path, clock=clock) as found:
        yield found


@pytest.fixture
def prompt_cloud(tmp_path: Path) -> Iterator[Cloud]:
    """A cloud on the machine's clock where everything is done at once."""
    with running_cloud(tmp_path, create_seconds=0.0) as found:
        yield found
