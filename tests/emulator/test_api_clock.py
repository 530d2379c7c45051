from __future__ import annotations

import threading
import time
from itertools import count

import pytest

from tpukit.emulator.core.emulator_clock import LATEST, EmulatorClock, parse_timestamp, timestamp
from tpukit.emulator.core.service_context import Timing


class Machine:
    """The machine's own time, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def machine():
    return Machine()


def test_a_clock_runs_at_its_speed_and_never_jumps_by_it(machine):
    clock = EmulatorClock(machine, offset=500)
    seen = [clock.time()]
    for speed in (60.0, 0.0, 1.0):
        clock.speed = speed
        seen.append(clock.time())
        machine.now += 10
        seen.append(clock.time())
    assert seen == [1500, 1500, 2100, 2100, 2100, 2100, 2110]


def test_a_clock_that_stands_still_is_stepped(machine):
    clock = EmulatorClock(machine)
    clock.speed = 0.0
    machine.now += 10
    clock.advance(5)
    assert clock.time() == 1005
    assert clock.real_seconds(1) is None


def test_a_clock_stops_before_dates_end_whatever_leads_it_there(machine):
    late = EmulatorClock(machine, shown=LATEST - 10)
    fast = EmulatorClock(machine, shown=LATEST - 1e9)
    fast.speed = 1e6
    stepped = EmulatorClock(machine)
    stepped.advance(1e12)
    machine.now += 1e4
    assert [clock.time() for clock in (late, fast, stepped)] == [LATEST] * 3


def test_a_clock_that_stands_still_does_so_while_the_machine_s_goes_on():
    """Here it goes on between any two looks, as it does."""
    ticks = (1_700_000_000.0 + number**2 for number in count())
    clock = EmulatorClock(lambda: next(ticks))
    clock.speed = 0.0
    assert clock.time() == clock.time()
    before = clock.time()
    clock.advance(5)
    assert clock.time() == before + 5


def test_a_clock_goes_on_where_the_machine_s_is_set_back(machine):
    clock = EmulatorClock(machine)
    clock.speed = 2.0
    machine.now -= 3600
    assert clock.time() == 1000
    machine.now += 10
    assert clock.time() == 1020
    offset = clock.offset
    machine.now -= 3600  # while the emulator is stopped, which showed 1020 last
    again = EmulatorClock(machine, offset, shown=1020)
    assert again.time() == 1020
    again.reset()
    assert again.time() == machine.now


def test_an_offset_makes_the_same_clock_again(machine):
    clock = EmulatorClock(machine)
    clock.speed = 60.0
    machine.now += 10
    assert EmulatorClock(machine, clock.offset).time() == clock.time()


def test_a_time_reads_as_it_was_written():
    assert parse_timestamp(timestamp(1_700_000_000.25)) == 1_700_000_000.25
    for text in ("soon", "2023-11-14T22:13:20", ""):
        with pytest.raises(ValueError):  # noqa: PT011
            parse_timestamp(text)


def test_realistic_times_are_those_of_reports():
    """A stockout is reported 31 to 71 seconds after the call."""
    timing = Timing.realistic()
    assert 31 <= timing.refusal <= 71
    assert timing.update < timing.change < timing.create < timing.maintenance


def test_a_user_sets_the_clock_and_speeds_it_up(api):
    shown = api.call("GET", "/_emulator/v1/clock")[1]
    assert shown["speed"] == 1.0
    body = {"set": "2050-01-01T00:00:00Z", "speed": 0}
    assert api.call("POST", "/_emulator/v1/clock", body)[1] == {
        "time": "2050-01-01T00:00:00.000000Z",
        "speed": 0.0,
    }
    api.create("n1")
    assert api.state_of("n1") == "CREATING"
    api.call("POST", "/_emulator/v1/clock", {"advance": 1000})
    assert api.state_of("n1") == "READY"


def test_time_that_was_sped_up_is_not_lost_in_a_restart(emulators):
    first = emulators.start()
    first.call("POST", "/_emulator/v1/clock", {"speed": 1e6})
    # At this speed a day takes a tenth of a second.
    began = time.time()
    for _ in range(400):
        shown = parse_timestamp(first.call("GET", "/_emulator/v1/clock")[1]["time"])
        if shown > began + 86400:
            break
        threading.Event().wait(0.01)
    emulators.stop()
    second = emulators.start()
    assert parse_timestamp(second.call("GET", "/_emulator/v1/clock")[1]["time"]) >= shown


@pytest.mark.parametrize(
    "body",
    [
        {"set": "2001-01-01T00:00:00Z"},
        {"set": "noon"},
        {"set": 12},
        {"speed": -1},
        {"speed": "fast"},
        {"speed": 1e9},
        {"rewind": 1},
    ],
)
def test_a_clock_refuses_what_is_no_time(api, body):
    before = api.call("GET", "/_emulator/v1/clock")[1]["speed"]
    assert api.call("POST", "/_emulator/v1/clock", body)[0] == 400
    assert api.call("GET", "/_emulator/v1/clock")[1]["speed"] == before


def test_a_running_emulator_takes_on_realistic_times(api):
    changed = api.call("POST", "/_emulator/v1/timing", {"realistic": True})[1]
    assert changed["create"] == Timing.realistic().create
    assert api.call("GET", "/_emulator/v1/status")[1]["create_seconds"] == changed["create"]
    again = api.call("POST", "/_emulator/v1/timing", {"create_seconds": 1})[1]
    assert again["change"] == 0.5
    for body in ({}, {"realistic": False}, {"create_seconds": -1}, {"create_seconds": 1, "x": 1}):
        assert api.call("POST", "/_emulator/v1/timing", body)[0] == 400
