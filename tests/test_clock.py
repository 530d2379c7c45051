"""Deadlines and polls on a clock that a test moves."""

from __future__ import annotations

import pytest
from support.local_cloud import FakeClock

from tpukit.clock import Deadline, Patience, SystemClock, polls
from tpukit.errors import DeadlinePassed, Fix


def test_polls_look_at_once_then_after_growing_pauses_and_at_the_very_end(clock: FakeClock) -> None:
    start = clock.now
    looks = [clock.now - start for _ in polls(Deadline.after(clock, 20.0))]
    assert looks[0] == 0.0
    assert looks[-1] == 20.0
    assert clock.slept[:4] == [1.0, 1.5, 2.25, 3.375]
    assert max(clock.slept) <= 5.0


def test_polls_yield_what_is_left(clock: FakeClock) -> None:
    assert list(polls(Deadline.after(clock, 2.0))) == [2.0, 1.0, 0.0]


def test_polls_of_a_deadline_that_has_passed_look_once(clock: FakeClock) -> None:
    assert list(polls(Deadline.after(clock, -1.0))) == [0.0]
    assert clock.slept == []


def test_a_deadline_never_has_less_than_nothing_left(clock: FakeClock) -> None:
    deadline = Deadline.after(clock, 5.0)
    clock.sleep(7.0)
    assert deadline.remaining() == 0.0
    assert deadline.passed()


def test_news_puts_patience_off_and_its_limit_stays(clock: FakeClock) -> None:
    patience = Patience(Deadline.after(clock, 12.0), 5.0)
    clock.sleep(4.0)
    assert patience.remaining() == 1.0
    patience.renew()
    assert patience.remaining() == 5.0
    clock.sleep(4.0)
    patience.renew()
    assert patience.remaining() == 4.0
    clock.sleep(4.0)
    assert patience.passed()


def test_within_returns_the_earlier_moment(clock: FakeClock) -> None:
    deadline = Deadline.after(clock, 5.0)
    assert deadline.within(2.0).remaining() == 2.0
    assert deadline.within(9.0).remaining() == 5.0


def test_never_is_years_away(clock: FakeClock) -> None:
    assert Deadline.never(clock).remaining() > 86400 * 365


def test_check_raises_only_once_the_deadline_has_passed(clock: FakeClock) -> None:
    deadline = Deadline.after(clock, 1.0)
    deadline.check("not yet")
    clock.sleep(1.0)
    with pytest.raises(DeadlinePassed, match="still creating") as caught:
        deadline.check("still creating", fix=Fix.command("tpukit", "delete", "x"))
    assert str(caught.value.fix) == "tpukit delete x"


def test_the_system_clock_measures_the_machine_s_time() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0.01)
    assert clock.monotonic() - before >= 0.01
    assert clock.time() > 1_700_000_000
