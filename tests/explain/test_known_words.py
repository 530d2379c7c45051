"""States, healths and exit codes: each that exists has a meaning and advice."""

from __future__ import annotations

import pytest

from tpukit import errors
from tpukit.errors import TpukitError
from tpukit.explain.known_words import word_explanations
from tpukit.google.enumerations import NODE_HEALTH, NODE_STATE, QUEUED_STATE


def exit_codes() -> set[int]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return {kind.exit_code for kind in kinds if issubclass(kind, TpukitError)} | {0}


@pytest.mark.parametrize(
    "word",
    [
        word
        for table in (NODE_STATE, NODE_HEALTH, QUEUED_STATE)
        for word in table.values()
        if not word.endswith("_UNSPECIFIED")
    ],
)
def test_each_state_and_health_of_the_api_is_explained(word: str) -> None:
    assert word_explanations(word)
    assert word_explanations(f"{word.lower().replace('_', ' ')}.")


@pytest.mark.parametrize("code", sorted(exit_codes()))
def test_each_exit_code_is_explained(code: int) -> None:
    for text in (f"{code}", f"exit {code}", f"exit code {code}", f"exited with status {code}"):
        assert [known.id for known in word_explanations(text)] == [f"exit-{code}"], text


def test_a_state_of_a_slice_and_of_a_request_is_explained_for_both() -> None:
    said = [known.cause.partition(":")[0] for known in word_explanations("CREATING")]
    assert said == ["a slice", "a queued resource"]


def test_a_sentence_is_not_taken_for_a_state() -> None:
    assert word_explanations("the slice is ready to use") == []
    assert word_explanations("exit 999") == []
