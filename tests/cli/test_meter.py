"""The line that says how far a transfer is."""

from __future__ import annotations

import io

import pytest
from local_cloud import FakeClock

from tpukit.cli.meter import Meter
from tpukit.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def meter(clock: FakeClock, stream: io.StringIO, quiet: bool = False) -> Meter:
    console = Console(io.StringIO(), stream, quiet=quiet, environ={})
    return Meter(console, clock, "sent")


def moved(clock: FakeClock, stream: io.StringIO, quiet: bool = False) -> str:
    """Move 200 MB in 20 seconds, four times a second."""
    found = meter(clock, stream, quiet)
    found.expect(200_000_000)
    for _ in range(80):
        clock.now += 0.25
        found.advance(2_500_000)
    found.finish()
    return stream.getvalue()


def test_off_a_terminal_there_is_a_line_now_and_then_and_one_at_the_end(clock: FakeClock) -> None:
    lines = moved(clock, io.StringIO()).splitlines()
    assert lines[0] == "sent 100.0 MB of 200.0 MB, 10.0 MB/s, 10 s left"
    assert lines[-1] == "sent 200.0 MB in 20.0 s (10.0 MB/s)"
    assert len(lines) <= 3


def test_on_a_terminal_one_line_is_painted_over_and_taken_away(clock: FakeClock) -> None:
    text = moved(clock, Terminal())
    *painted, last = text.split("\r\x1b[K")
    assert len(painted) > 70
    assert all("\n" not in each for each in painted)
    assert last == "sent 200.0 MB in 20.0 s (10.0 MB/s)\n"


def test_quiet_says_nothing(clock: FakeClock) -> None:
    assert moved(clock, Terminal(), quiet=True) == ""


def test_nothing_moved_is_nothing_said(clock: FakeClock) -> None:
    stream = Terminal()
    meter(clock, stream).finish()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("expected", "advanced", "seconds", "line"),
    [
        (1000, 10, 1.0, "sent 10 B of 1.0 kB, 10 B/s, 1 min left"),
        (10**12, 10**9, 10.0, "sent 1.0 GB of 1000.0 GB, 100.0 MB/s, 2 h 46 min left"),
        (0, 0, 0.0, "sent 0 B of 0 B, 0 B/s, 0 s left"),
    ],
)
def test_amounts_and_times_are_in_the_unit_that_fits(
    clock: FakeClock, expected: int, advanced: int, seconds: float, line: str
) -> None:
    found = meter(clock, io.StringIO())
    found.expect(expected)
    found.advance(advanced)
    assert found.line(seconds) == line


def test_another_line_does_not_run_into_a_painted_one(clock: FakeClock) -> None:
    stream = Terminal()
    console = Console(io.StringIO(), stream, environ={})
    console.progress("sent 1 B")
    console.say("a line")
    console.progress("")
    assert stream.getvalue() == "\r\x1b[Ksent 1 B\r\x1b[Ka line\n"


def test_progress_passes_the_gate_too() -> None:
    stream = Terminal()
    Console(io.StringIO(), stream, environ={}).progress("a\x1b]0;owned\x07\nb")
    assert stream.getvalue() == "\r\x1b[Ka\\x1b]0;owned\\x07 b"
