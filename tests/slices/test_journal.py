"""The journal is a hint: it never stops a command, whatever became of its file."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from support.local_cloud import FakeClock

from tpukit.clock import Deadline
from tpukit.models import DataDisk, Slice
from tpukit.slices.data_disks import left_over
from tpukit.slices.journal import Journal


@pytest.fixture
def journal(tmp_path: Path, clock: FakeClock) -> Journal:
    return Journal(tmp_path / "state" / "journal.jsonl", clock)


def test_a_slice_made_in_another_project_stays_visible_until_it_is_deleted(
    journal: Journal,
) -> None:
    journal.record("create", "there", "zone", "a")
    assert journal.other_projects("here") == ("there",)
    assert journal.other_projects("there") == ()
    journal.record("delete", "there", "zone", "a")
    assert journal.other_projects("here") == ()


def test_projects_of_another_api_are_not_told(journal: Journal) -> None:
    journal.record("create", "there", "zone", "a")
    elsewhere = replace(journal, endpoint="http://127.0.0.1:8080/")
    assert elsewhere.other_projects("here") == ()
    elsewhere.record("create", "local", "zone", "b")
    assert elsewhere.other_projects("here") == ("local",)
    assert journal.other_projects("here") == ("there",)


def test_one_deleted_slice_does_not_hide_another(journal: Journal) -> None:
    for name in ("a", "b"):
        journal.record("create", "there", "zone", name)
    journal.record("delete", "there", "zone", "a")
    assert journal.other_projects("here") == ("there",)


def test_the_disks_of_slices_are_remembered_with_the_last_one_that_had_them(
    journal: Journal,
) -> None:
    one, two = DataDisk("projects/p/zones/z/disks/one"), DataDisk("projects/p/zones/z/disks/two")
    journal.record("create", "p", "z", "a", [one, two])
    journal.record("delete", "p", "z", "b", [two])
    journal.record("create", "q", "z", "c", [one])
    for wrong in ("5", '"text"', "{}", "null", "[5]"):
        line = '{"endpoint":"","event":"create","project":"p","zone":"z","name":"n","disks":%s}\n'
        with journal.path.open("a") as file:
            file.write("\n" + line % wrong)
    known = {key: name for key, name in journal.disks("p").items() if "/" in key}
    assert known == {one.source: "a", two.source: "b"}


def test_a_record_says_when_and_what(journal: Journal, clock: FakeClock) -> None:
    journal.record("create", "p", "z", "n")
    assert json.loads(journal.path.read_text()) == {
        "time": clock.now,
        "endpoint": "",
        "event": "create",
        "project": "p",
        "zone": "z",
        "name": "n",
    }


def test_the_file_is_private_to_its_owner(journal: Journal) -> None:
    journal.record("create", "p", "z", "n")
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.path.parent.stat().st_mode) == 0o700


def test_a_file_cut_at_any_byte_loses_no_record_written_after_the_cut(journal: Journal) -> None:
    journal.record("create", "first", "z", "n")
    journal.record("create", "second", "z", "n")
    whole = journal.path.read_bytes()
    for length in range(len(whole) + 1):
        journal.path.write_bytes(whole[:length])
        assert set(journal.other_projects("here")) <= {"first", "second"}
        journal.record("create", "third", "z", "n")
        assert "third" in journal.other_projects("here"), length


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "null",
        "7",
        '"text"',
        "{}",
        '{"event": "create"}',
        '{"event": "create", "project": [], "zone": {}, "name": null}',
        '{"endpoint": "", "event": "create", "project": 7, "zone": 7, "name": 7}',
        "[" * 100_000,
        "\x00\xff",
    ],
)
def test_a_line_of_another_shape_is_passed_over(journal: Journal, line: str) -> None:
    journal.record("create", "there", "z", "n")
    with journal.path.open("a") as file:
        file.write(f"\n{line}\n")
    assert "there" in journal.other_projects("here")


def test_without_a_file_there_are_no_other_projects(journal: Journal) -> None:
    assert journal.other_projects("here") == ()


def test_a_place_that_cannot_be_written_stops_nothing(tmp_path: Path, clock: FakeClock) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    journal = Journal(blocker / "below" / "journal.jsonl", clock)
    journal.record("create", "p", "z", "n")
    assert journal.other_projects("here") == ()


def test_a_directory_in_its_place_stops_nothing(tmp_path: Path, clock: FakeClock) -> None:
    journal = Journal(tmp_path, clock)
    journal.record("create", "p", "z", "n")
    assert journal.other_projects("here") == ()


def test_a_link_is_never_written_through(tmp_path: Path, clock: FakeClock) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    link = tmp_path / "journal.jsonl"
    link.symlink_to(target)
    Journal(link, clock).record("create", "p", "z", "n")
    assert target.read_text() == "mine"


def test_of_the_remembered_disks_those_are_left_over_that_are_there_and_no_slice_has() -> None:
    class Disks:
        asked: ClassVar[list[str]] = []

        def within(self, deadline: Deadline) -> Disks:
            return self

        def unused(self, source: str) -> int | None:
            self.asked.append(source)
            return 10 if source.endswith("/left") else None

    base = "projects/{}/zones/z/disks/{}"
    had = {base.format("p", name): "a" for name in ("used", "gone", "left")} | {"nonsense": "a"}
    by_number = DataDisk(base.format("123", "used"))
    slices = [Slice("b", "p", "z", "v2-8", "image", "READY", data_disks=(by_number,))]
    (slice_,) = left_over(Disks(), had, slices)
    assert (slice_.name, slice_.zone, slice_.size_gb, slice_.slice) == ("left", "z", 10, "a")
    assert Disks.asked == [base.format("p", "gone"), base.format("p", "left")]
