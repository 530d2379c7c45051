"""What earlier requests came to, and where the next search begins."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path

import pytest
from support.local_cloud import FakeClock

from tpukit.errors import BadInput, NoCapacity, QuotaExceeded
from tpukit.models import SliceRequest
from tpukit.slices.capacity_memory import Attempt, CapacityMemory, by_place, parsed

HOUR, DAY = 3600.0, 86400.0


def request(zone: str, **given: str) -> SliceRequest:
    return SliceRequest("demo", "p", zone, given.pop("type", "v6e-8"), "image", **given)


@pytest.fixture
def memory(tmp_path: Path, clock: FakeClock) -> CapacityMemory:
    return CapacityMemory(tmp_path / "state/capacity.jsonl", clock, "https://tpu.example/")


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


def test_a_search_begins_where_a_slice_was_made_and_ends_where_it_was_refused(
    memory: CapacityMemory, clock: FakeClock
) -> None:
    memory.record(request("good"), NoCapacity("no"), 1.0)
    memory.record(request("good"), None, 1.0)
    memory.record(request("full"), None, 1.0)
    memory.record(request("full"), NoCapacity("no"), 1.0)
    memory.record(request("closed"), QuotaExceeded("no"), 1.0)
    memory.record(request("other", type="v6e-4"), NoCapacity("no"), 1.0)
    assert memory.promise("v6e-8") == {"good": -1, "full": 1, "closed": 2}
    clock.now += DAY + 1  # the success in `full` does not count again: it refused since
    assert memory.promise("v6e-8") == {"good": -1, "full": -1}
    clock.now += 7 * DAY
    assert memory.promise("v6e-8") == {}


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


def test_another_endpoint_a_cut_line_and_a_foreign_document_do_not_count(
    memory: CapacityMemory, clock: FakeClock
) -> None:
    memory.record(request("a"), None, 1.0)
    CapacityMemory(memory.path, clock, "http://127.0.0.1:1/").record(request("b"), None, 1.0)
    with memory.path.open("a") as file:
        file.write('{"zone": "c\n[1]\n{"endpoint": "https://tpu.example/"}\nNaN\n')
    memory.record(request("d"), None, 1.0)
    assert [one.zone for one in memory.attempts()] == ["a", "d"]
    good = asdict(memory.attempts()[0])
    bad = [3, None, {}, {**good, "time": "nan"}, {**good, "waited": "x"}]
    assert [*parsed([*bad, good])] == memory.attempts()[:1]


def test_the_file_stays_small_and_takes_lines_of_two_commands_at_once(
    memory: CapacityMemory, clock: FakeClock
) -> None:
    one = Attempt(clock.now, "a", "v6e-8", "on-demand", "tpu", "made", 1.0)

    def fill() -> None:
        for _ in range(50):
            memory.add([one] * 5)

    threads = [threading.Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(memory.attempts()) == 500
    memory.add([one] * 8000)
    assert len(memory.attempts()) == 2000


def test_a_rehearsal_or_a_full_disk_records_nothing(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "capacity.jsonl"
    CapacityMemory(path, clock, "e", enabled=False).record(request("a"), None, 1.0)
    assert not path.exists()
    (tmp_path / "file").touch()
    CapacityMemory(tmp_path / "file/x", clock, "e").record(request("a"), None, 1.0)
