"""Workers by number."""

from __future__ import annotations

import pytest

from tpukit.access.selection import parse_workers
from tpukit.errors import (
    BadInput,
)


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("all", [0, 1, 2, 3]),
        ("0", [0]),
        ("3", [3]),
        ("0,2", [0, 2]),
        ("2,0", [0, 2]),
        ("1-3", [1, 2, 3]),
        ("0,2-3", [0, 2, 3]),
        ("0-0", [0]),
        ("1,1,1", [1]),
        (" 0 , 1 ", [0, 1]),
        ("0-3,1", [0, 1, 2, 3]),
    ],
)
def test_workers_are_chosen_by_number_and_range(words: str, chosen: list[int]) -> None:
    assert parse_workers(words, range(4)) == chosen


@pytest.mark.parametrize(
    "words",
    ["", ",", "0,", "-1", "1-", "3-1", "a", "ALL", "0;1", "0 1", "1.5", "²", "4", "0-4", "99999"],
)
def test_words_that_choose_no_worker_are_bad_input(words: str) -> None:
    with pytest.raises(BadInput):
        parse_workers(words, range(4))


def test_a_slice_without_workers_has_none_to_choose() -> None:
    with pytest.raises(BadInput, match="no worker 0"):
        parse_workers("0", [])
