"""A socket that gives up a silent peer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tpukit.ssh.watchdog import WatchedSocket

Pair = tuple[WatchedSocket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A watched socket that allows a silence of three waits, and its peer."""
    ours, theirs = socket.socketpair()
    watched = WatchedSocket(ours, 0.3)
    watched.settimeout(0.1)
    yield watched, theirs
    watched.close()
    theirs.close()


def receive_until_given_up(watched: WatchedSocket) -> int:
    """Return in how many waits the peer was given up."""
    for waits in range(1, 1000):
        try:
            watched.recv(1)
        except TimeoutError:
            continue
        except ConnectionAbortedError:
            return waits
    raise AssertionError("the peer was never given up")


def test_a_peer_is_given_up_when_it_was_silent_for_as_long_as_it_may(pair: Pair) -> None:
    watched, _ = pair
    assert receive_until_given_up(watched) == 3
    assert watched.fault == "it was silent for 0.3 s"


def test_a_peer_that_takes_nothing_is_given_up_whatever_it_sends(pair: Pair) -> None:
    watched, peer = pair

    def send() -> None:
        for _ in range(1000):
            peer.send(b"x")
            assert watched.recv(1) == b"x"
            with suppress(TimeoutError):
                watched.send(bytes(1 << 16))

    with pytest.raises(ConnectionAbortedError, match=r"it was silent for 0\.3 s"):
        send()


def test_a_sign_of_life_starts_the_count_again(pair: Pair) -> None:
    watched, peer = pair
    for _ in range(3):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                watched.recv(1)
        peer.send(b"x")
        assert watched.recv(1) == b"x"
    assert not watched.fault


def test_a_silent_peer_is_asked_once_before_it_is_given_up(pair: Pair) -> None:
    watched, _ = pair
    asked: list[str] = []
    watched.ask = lambda: asked.append("are you there?")
    receive_until_given_up(watched)
    for thread in threading.enumerate():
        if thread.name == "tpukit-keepalive":
            thread.join(60)
    assert asked == ["are you there?"]


def test_it_wakes_seldom_where_the_silence_that_is_allowed_is_long() -> None:
    ours, theirs = socket.socketpair()
    with WatchedSocket(ours, 48.0) as watched, theirs:
        watched.settimeout(0.1)
        assert watched.gettimeout() == 2.0
