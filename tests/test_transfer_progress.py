"""How far a transfer is, as people see it."""

from __future__ import annotations

import io

from support.local_cloud import FakeClock

from tpukit.console import Console, TransferProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def moved(clock: FakeClock, stream: io.StringIO, quiet: bool = False) -> str:
    """Move 200 MB in 20 seconds, four times a second, and say something half-way."""
    console = Console(io.StringIO(), stream, quiet=quiet, environ={})
    progress = TransferProgress(console, clock, "sent")
    progress.expect(200_000_000)
    for step in range(80):
        clock.now += 0.25
        progress.advance(2_500_000)
        if step == 40 and not quiet:
            console.say("[red]half-way[/red]\x1b]0;owned\x07")
    progress.finish()
    return stream.getvalue()


def test_off_a_terminal_there_is_a_line_every_ten_seconds_and_one_at_the_end(
    clock: FakeClock,
) -> None:
    assert moved(clock, io.StringIO()).splitlines() == [
        "sent 100.0 MB of 200.0 MB in 10.0 s (10.0 MB/s)",
        "[red]half-way[/red]\\x1b]0;owned\\x07",
        "sent 200.0 MB of 200.0 MB in 20.0 s (10.0 MB/s)",
        "sent 200.0 MB in 20.0 s (10.0 MB/s)",
    ]


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(clock: FakeClock) -> None:
    text = moved(clock, Terminal())
    assert "━" in text
    assert "200.0" in text
    # What is said meanwhile stays, as it is; the bar is erased before the last line.
    assert "[red]half-way[/red]\\x1b]0;owned\\x07\n" in text
    _, erased, last = text.rpartition("\x1b[1A\x1b[2K")
    assert erased
    assert last == "sent 200.0 MB in 20.0 s (10.0 MB/s)\n"


def test_quiet_says_nothing(clock: FakeClock) -> None:
    assert moved(clock, Terminal(), quiet=True) == ""
    assert moved(clock, io.StringIO(), quiet=True) == ""


def test_what_is_over_at_once_and_what_moved_nothing_draws_no_bar(clock: FakeClock) -> None:
    stream = Terminal()
    console = Console(io.StringIO(), stream, environ={})
    TransferProgress(console, clock, "sent").finish()
    assert stream.getvalue() == ""
    short = TransferProgress(console, clock, "sent")
    short.expect(10)
    short.advance(10)
    short.finish()
    assert stream.getvalue().startswith("sent 10 bytes in ")
    assert "\x1b" not in stream.getvalue()


def test_the_rate_is_of_the_transfer_not_of_the_work_before_it(clock: FakeClock) -> None:
    """A trace is recorded before it is received."""
    stream = io.StringIO()
    progress = TransferProgress(Console(io.StringIO(), stream, environ={}), clock, "received")
    clock.now += 60.0
    for _ in range(2):
        progress.expect(10_000_000)
        clock.now += 1.0
        progress.advance(10_000_000)
    progress.finish()
    assert stream.getvalue() == "received 20.0 MB in 2.0 s (10.0 MB/s)\n"
