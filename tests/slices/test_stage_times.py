"""The times of earlier jobs: medians by kind, in a small file that may be lost or damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpukit.slices.stage_times import StageTimes


def times(folder: Path, kind: str = "cloud v3-8 jax") -> StageTimes:
    return StageTimes(folder / "state" / "stage_times.json", kind)


def test_the_median_of_the_last_jobs_of_the_same_kind_is_expected(tmp_path: Path) -> None:
    assert times(tmp_path).expected() == {}
    for seconds in (900.0, 60.0, 62.0):
        times(tmp_path).record({"create": seconds, "connect": 3.0})
    times(tmp_path, "emulator v3-8 jax").record({"create": 1.0})
    assert times(tmp_path).expected() == {"create": 62.0, "connect": 3.0}
    times(tmp_path).record({"smoke": 5.0})
    assert times(tmp_path).expected()["create"] == 62.0


def test_the_file_stays_small_and_the_oldest_kinds_go_first(tmp_path: Path) -> None:
    for number in range(120):
        times(tmp_path, f"kind {number}").record({"create": 1.0})
    for _ in range(20):
        times(tmp_path, "kind 50").record({"create": 2.0})
    known = json.loads(times(tmp_path).path.read_text())
    assert (len(known), len(known["kind 50"]["create"])) == (100, 9)
    assert "kind 119" in known
    assert "kind 19" not in known


@pytest.mark.parametrize(
    "text", ["", "[]", '{"cloud v3-8 jax": 3}', '{"cloud v3-8 jax": {"a": "x"}}']
)
def test_a_damaged_file_is_like_none(tmp_path: Path, text: str) -> None:
    path = times(tmp_path).path
    path.parent.mkdir(mode=0o700)
    path.write_text(text)
    path.chmod(0o600)
    assert times(tmp_path).expected() == {}
    times(tmp_path).record({"create": 4.0})
    assert times(tmp_path).expected() == {"create": 4.0}
