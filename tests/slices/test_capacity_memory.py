"""What earlier requests came to, and where the next search begins."""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.local_cloud import FakeClock

from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    NameTaken,
    NoCapacity,
    QuotaExceeded,
    TpukitError,
)
from tpukit.models import SliceRequest
from tpukit.slices.capacity_memory import Attempt, CapacityMemory, by_place, parsed

DAY = 86400.0


def request(zone: str, **given: str) -> SliceRequest:
    return SliceRequest("demo", "p", zone, given.pop("type", "v6e-8"), "image", **given)


@pytest.fixture
def memory(tmp_path: Path, clock: FakeClock) -> CapacityMemory:
    return CapacityMemory(tmp_path / "state/capacity", "https://tpu.example/\np", clock)


def test_an_attempt_has_its_place_its_outcome_and_its_time(
    memory: CapacityMemory, clock: FakeClock
) -> None:
    memory.record(request("a", provisioning="spot", api="compute"), None, 4.26)
    for error, outcome in (
        (NoCapacity("no"), "no capacity"),
        (QuotaExceeded("no"), "no quota"),
        (BadInput("no"), "refused"),
    ):
        memory.record(request("b"), error, 1.0)
        assert memory.attempts()[-1].outcome == outcome
    assert memory.attempts()[0] == Attempt(clock.now, "a", "v6e-8", "spot", "compute", "made", 4.3)
    assert (memory.path.stat().st_mode & 0o777, len(memory.attempts())) == (0o600, 4)


def test_an_error_that_says_nothing_about_the_place_is_left_out(memory: CapacityMemory) -> None:
    for error in (
        QuotaExceeded("too many calls in a minute", retry="same-zone"),
        NameTaken("eve has it", retry="other-zone"),
        DeadlinePassed("not READY yet"),
        TpukitError("no answer", reason="UNAVAILABLE"),
    ):
        memory.record(request("a"), error, 1.0)
    assert memory.attempts() == []


def test_a_search_begins_where_a_slice_was_made_and_ends_where_it_was_refused(
    memory: CapacityMemory, clock: FakeClock
) -> None:
    zones = ("closed", "full", "unknown", "good")
    memory.record(request("good"), NoCapacity("no"), 1.0)
    memory.record(request("good"), None, 1.0)
    memory.record(request("full"), None, 1.0)
    memory.record(request("full"), NoCapacity("no"), 1.0)
    memory.record(request("closed"), QuotaExceeded("no"), 1.0)

    def order() -> list[str]:
        return [one.zone for one in memory.best_first([request(zone) for zone in zones])]

    assert order() == ["good", "unknown", "full", "closed"]
    clock.now += DAY + 1  # the success in `full` does not count again: it refused since
    assert order() == ["full", "good", "closed", "unknown"]
    clock.now += 7 * DAY
    assert order() == list(zones)


def test_an_attempt_in_a_distant_future_does_not_count(
    memory: CapacityMemory, clock: FakeClock
) -> None:
    """A colleague's clock may be wrong; its success would come first for ever."""
    memory.add([Attempt(clock.now + 8 * DAY, "b", "v6e-8", "on-demand", "tpu", "made", 1.0)])
    assert memory.best_first([request("a"), request("b")])[0].zone == "a"


def test_a_place_is_a_zone_a_type_a_way_to_buy_and_an_api(memory: CapacityMemory) -> None:
    memory.record(request("a", provisioning="spot"), None, 1.0)
    memory.record(request("b", api="compute"), None, 1.0)
    memory.record(request("b", type="v6e-4", provisioning="spot"), None, 1.0)
    memory.record(request("a", type="v6e-4"), NoCapacity("no"), 1.0)
    wishes = [
        request(zone, provisioning=tier, api=api)
        for tier in ("on-demand", "spot")
        for zone in ("a", "b")
        for api in ("tpu", "compute")
    ]
    asked = [(one.provisioning, one.zone, one.api) for one in memory.best_first(wishes)]
    assert asked == [
        ("on-demand", "b", "compute"),  # no success comes before a way to buy that you prefer
        ("on-demand", "a", "tpu"),
        ("on-demand", "a", "compute"),
        ("on-demand", "b", "tpu"),
        ("spot", "a", "tpu"),
        ("spot", "a", "compute"),
        ("spot", "b", "tpu"),
        ("spot", "b", "compute"),
    ]


def test_places_are_counted_the_last_success_first(memory: CapacityMemory) -> None:
    memory.record(request("a"), NoCapacity("no"), 1.0)
    memory.record(request("b"), None, 1.0)
    memory.record(request("b", provisioning="spot"), NoCapacity("no"), 1.0)
    memory.record(request("a"), NoCapacity("no"), 1.0)
    counted = [
        (one.last.zone, one.last.bought, one.attempts, one.made)
        for one in by_place(memory.attempts("v6e-8"))
    ]
    assert counted[0] == ("b", "on-demand", 1, 1)
    assert set(counted[1:]) == {("a", "on-demand", 2, 0), ("b", "spot", 1, 0)}


def test_another_endpoint_or_project_a_cut_line_and_a_foreign_document_do_not_count(
    memory: CapacityMemory, clock: FakeClock
) -> None:
    memory.record(request("a"), None, 1.0)
    for place in ("http://127.0.0.1:1/\np", "https://tpu.example/\nother"):
        CapacityMemory(memory.directory, place, clock).record(request("b"), None, 1.0)
    with memory.path.open("a") as file:
        file.write('{"zone": "c\n[1]\n{"time": 3}\nNaN\n')
    memory.record(request("d"), None, 1.0)
    assert [one.zone for one in memory.attempts()] == ["a", "d"]
    assert len([*memory.directory.glob("*.jsonl")]) == 3
    good = asdict(memory.attempts()[0])
    bad = [3, None, {}, {**good, "time": "nan"}, {**good, "waited": "x"}]
    bad += [{**good, "time": 10**400}, {**good, "waited": float("nan")}]
    assert [*parsed([*bad, good])] == memory.attempts()[:1]


def test_the_file_stays_small_and_keeps_successes_beside_refusals(
    memory: CapacityMemory, clock: FakeClock
) -> None:
    good = Attempt(clock.now, "a", "v6e-8", "on-demand", "tpu", "made", 1.0)
    memory.add([good])
    refusals = [replace(good, time=good.time + n, outcome="no capacity") for n in range(1, 8001)]
    memory.add(refusals)
    assert memory.attempts() == [good, *refusals[-1000:]]
    memory.add([replace(good, time=good.time + n) for n in range(1, 8001)])
    assert len(memory.attempts()) == 2000
    assert sum(one.outcome == "made" for one in memory.attempts()) == 1000


def test_no_line_of_another_command_is_lost_while_one_shortens_the_file(
    memory: CapacityMemory, clock: FakeClock
) -> None:
    """Of four that add at once, each has to shorten the file."""
    good = Attempt(clock.now, "a", "v6e-8", "on-demand", "tpu", "made", 1.0)
    old = [replace(good, outcome="no capacity")] * 5000

    def fill(number: int) -> None:
        for step in range(3):
            mine = replace(good, zone=f"{number}-{step}", time=good.time + 1)
            memory.add([*old, mine])

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [one.zone for one in memory.attempts() if one.outcome == "made"]
    assert sorted(made) == sorted(f"{number}-{step}" for number in range(4) for step in range(3))


def test_a_rehearsal_or_a_full_disk_records_nothing(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "capacity"
    CapacityMemory(path, "e", clock, enabled=False).record(request("a"), None, 1.0)
    assert not path.exists()
    (tmp_path / "file").touch()
    CapacityMemory(tmp_path / "file/x", "e", clock).record(request("a"), None, 1.0)
