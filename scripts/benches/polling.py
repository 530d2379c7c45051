"""How late a wait notices its end: tpukit's pauses beside gcloud's, on a clock without time."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from random import Random
from statistics import fmean

from measure import show

from tpukit.clock import Deadline, polls

MINUTES = (0.5, 1, 2, 3, 5, 10, 20)
#: Waits of one length differ by as much, either way.
JITTER = 0.1


class CountedClock:
    """A clock on which only sleeping takes time."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


Policy = Callable[[CountedClock, Random], Iterator[object]]


def tpukit_policy(clock: CountedClock, random: Random) -> Iterator[object]:
    return polls(Deadline.never(clock))


def gcloud_policy(clock: CountedClock, random: Random) -> Iterator[object]:
    """Google Cloud SDK 528.0.0, googlecloudsdk/api_lib/util/waiter.py: WaitFor's defaults."""
    pause = 1.0
    clock.sleep(pause)
    pause = 2.0
    while True:
        yield None
        clock.sleep(min(pause + random.random(), 180.0))
        pause *= 1.4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--waits", type=int, default=2000, help="simulated waits of each length")
    parser.add_argument("--seed", type=int, default=1)


def run(options: argparse.Namespace) -> int:
    random = Random(options.seed)
    rows, holds = [], True
    for minutes in MINUTES:
        ends = [60 * minutes * random.uniform(1 - JITTER, 1 + JITTER) for _ in range(options.waits)]
        ours, our_polls = _average(tpukit_policy, ends, random)
        theirs, their_polls = _average(gcloud_policy, ends, random)
        holds = holds and ours < min(3.0, theirs)
        figures = (ours, theirs, our_polls, their_polls)
        rows.append([f"{60 * minutes:.0f}", *(f"{figure:.1f}" for figure in figures)])
    columns = ("WAIT s", "LATE s: tpukit", "gcloud", "POLLS: tpukit", "gcloud")
    show(columns, rows)
    return int(not holds)


def _average(policy: Policy, ends: list[float], random: Random) -> tuple[float, float]:
    """Return the mean seconds from an end to the poll that sees it, and the mean polls until it."""
    waits = [_wait(policy, end, random) for end in ends]
    return fmean(late for late, _ in waits), fmean(count for _, count in waits)


def _wait(policy: Policy, end: float, random: Random) -> tuple[float, int]:
    clock = CountedClock()
    for count, _ in enumerate(policy(clock, random), start=1):
        if clock.now >= end:
            return clock.now - end, count
    raise AssertionError("a policy never ends by itself")
