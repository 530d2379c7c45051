"""The same work on many items at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from tpukit.errors import SliceLost, TransportFailed
from tpukit.ssh.fan_out import fan_out, values


def test_outcomes_are_in_the_order_of_the_items() -> None:
    """The first item ends last: it waits for all the others."""
    others = threading.Semaphore(0)

    def work(item: int) -> int:
        if item == 0:
            for _ in range(4):
                assert others.acquire(timeout=60)
        else:
            others.release()
        return item * item

    outcomes = fan_out(range(5), work)
    assert [(outcome.item, outcome.value) for outcome in outcomes] == [
        (0, 0), (1, 1), (2, 4), (3, 9), (4, 16),
    ]  # fmt: skip


def test_one_failure_is_that_items_alone() -> None:
    def work(item: int) -> int:
        if item == 1:
            raise TransportFailed("worker 1 is down")
        return item

    outcomes = fan_out([0, 1, 2], work, window=1)
    assert [outcome.value for outcome in outcomes] == [0, None, 2]
    assert isinstance(outcomes[1].error, TransportFailed)


def test_of_several_failures_the_decisive_one_is_raised() -> None:
    """A worker that could not be reached says less than one that says why: preempted."""

    def work(item: int) -> int:
        raise SliceLost("preempted") if item == 2 else TransportFailed(f"worker {item} is down")

    with pytest.raises(SliceLost):
        values(fan_out([0, 1, 2], work))


def test_at_most_a_window_runs_at_once() -> None:
    running, most, lock = 0, 0, threading.Lock()
    full = threading.Barrier(3)

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        full.wait(60)
        with lock:
            running -= 1

    fan_out(range(9), work, window=3)
    assert most == 3


def test_a_defect_is_raised_after_every_item_has_ended() -> None:
    ended: list[int] = []

    def work(item: int) -> None:
        ended.append(item)
        if item == 0:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fan_out(range(3), work)
    assert sorted(ended) == [0, 1, 2]


def test_nothing_to_do_is_done() -> None:
    assert fan_out([], print) == []


PROGRAM = """
import sys, threading, time
from tpukit.cli import signals
from tpukit.ssh.fan_out import fan_out
signals.lose_none()
over = threading.Event()
def work(item):
    sys.stdout.write("working\\n")
    sys.stdout.flush()
    (over if item else threading.Event()).wait()
def cancel():
    global cancelled
    cancelled = time.monotonic()
    over.set()
try:
    fan_out(range(4), work, window=2, cancel=cancel)
except KeyboardInterrupt:
    print(time.monotonic() - cancelled < 0.4)
    sys.exit(130)
"""


def test_an_interrupt_leaves_at_once_and_cancels_what_hangs() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["working\n"] * 2
    process.send_signal(signal.SIGINT)
    # What hangs there never ends: a tenth of a second is for what does. Nothing more is begun.
    assert process.wait(60) == 130
    assert process.stdout.read() == "True\n"
