"""What is kept of a slice, for whom, and for how long."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from support.local_cloud import FakeClock

from tpukit.access.hints import Hint, Hints
from tpukit.models import Slice, Worker, WorkerIdentity
from tpukit.slices.lifetime import CLAIM
from tpukit.slices.naming import FOUND, GANG, LOOKING, SEARCH

SLICE = Slice(
    "demo",
    "p",
    "us-central1-a",
    "v3-8",
    "r",
    "READY",
    workers=(Worker(0, "10.0.0.1", "192.0.2.1"),),
)
HINT = Hint(SLICE, {0: WorkerIdentity(0, ("ssh-ed25519 AAAA",), "host-0", 2222)}, everywhere=True)


@pytest.fixture
def hints(tmp_path: Path) -> Hints:
    return Hints(tmp_path / "hints", "https://tpu\np", FakeClock())


def test_what_was_kept_is_recalled_as_it_was(hints: Hints) -> None:
    hints.keep(HINT)
    assert hints.recall("demo", "") == HINT
    assert hints.recall("other", "") is None


def test_a_hint_knows_the_slice_s_api(hints: Hints) -> None:
    """A slice of Compute Engine that is looked up in the other API would seem to be gone."""
    hints.keep(replace(HINT, slice=replace(SLICE, api="compute")))
    hint = hints.recall("demo", "")
    assert hint
    assert hint.slice.api == "compute"


@pytest.mark.parametrize("label", [(CLAIM, "60"), (SEARCH, LOOKING), (GANG, "1")])
def test_there_is_no_hint_of_a_slice_that_the_next_command_has_to_claim(
    hints: Hints, label: tuple[str, str]
) -> None:
    """`smoke` and `doctor` leave hints too, and claim nothing."""
    hints.keep(replace(HINT, slice=replace(SLICE, labels=dict([label]))))
    assert hints.recall("demo", "") is None
    hints.keep(replace(HINT, slice=replace(SLICE, labels={SEARCH: FOUND})))
    assert hints.recall("demo", "")


def test_a_hint_is_for_minutes(hints: Hints) -> None:
    hints.keep(HINT)
    hints.clock.sleep(599.0)
    assert hints.recall("demo", "")
    hints.clock.sleep(2.0)
    assert hints.recall("demo", "") is None
    hints.clock.sleep(-3600.0)  # a clock that was set back
    assert hints.recall("demo", "") is None


def test_what_is_kept_belongs_to_one_project_of_one_api(hints: Hints) -> None:
    hints.keep(HINT)
    assert replace(hints, place="https://tpu\nanother").recall("demo", "") is None


def test_a_slice_that_was_found_in_one_zone_is_not_taken_for_the_only_one(hints: Hints) -> None:
    hints.keep(replace(HINT, everywhere=False))
    assert hints.recall("demo", "") is None
    recall = hints.recall("demo", "us-central1-a")
    assert recall
    assert recall.zone == "us-central1-a"
    assert hints.recall("demo", "us-central1-b") is None


def test_the_only_one_of_its_name_is_found_by_its_zone_too(hints: Hints) -> None:
    hints.keep(HINT)
    recall = hints.recall("demo", "us-central1-a")
    assert recall
    assert recall.zone == "us-central1-a"


def test_a_slice_that_is_forgotten_is_not_recalled(hints: Hints) -> None:
    hints.forget("demo")
    hints.keep(HINT)
    hints.forget("demo")
    assert hints.recall("demo", "") is None


def test_hints_are_for_their_owner_alone(hints: Hints) -> None:
    hints.keep(HINT)
    (file,) = hints.directory.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(hints.directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"written": 1e999}', "\x00", "null"])
def test_a_damaged_file_is_no_hint(hints: Hints, text: str) -> None:
    hints.keep(HINT)
    (file,) = hints.directory.iterdir()
    file.write_text(text)
    assert hints.recall("demo", "") is None


def test_a_hint_of_another_version_is_none(hints: Hints) -> None:
    hints.keep(HINT)
    (file,) = hints.directory.iterdir()
    file.write_text(file.read_text().replace('"version": "', '"version": "9'))
    assert hints.recall("demo", "") is None


def test_a_folder_that_cannot_be_written_fails_nothing(hints: Hints) -> None:
    hints.directory.write_text("in the way")
    hints.keep(HINT)
    hints.forget("demo")
    assert hints.recall("demo", "") is None


def test_hints_that_are_turned_off_keep_and_tell_nothing(hints: Hints) -> None:
    hints.keep(HINT)
    off = replace(hints, enabled=False)
    assert off.recall("demo", "") is None
    hints.forget("demo")
    off.keep(HINT)
    assert not list(hints.directory.iterdir())


def test_a_hint_that_others_could_have_written_is_none(hints: Hints) -> None:
    hints.keep(HINT)
    (file,) = hints.directory.iterdir()
    file.chmod(0o666)
    assert hints.recall("demo", "") is None
