"""The error tree: its exit codes are the contract with scripts."""

from __future__ import annotations

from typing import Any

import pytest

from tpukit import errors
from tpukit.errors import (
    BadInput,
    Fix,
    Interrupted,
    Terminated,
    TerminationSignal,
    TpukitError,
    interruption,
)

CODES = {
    "TpukitError": 1,
    "BadInput": 2,
    "NotFound": 3,
    "NotAuthenticated": 4,
    "NotAllowed": 4,
    "NotEnabled": 4,
    "NameTaken": 5,
    "NoCapacity": 6,
    "QuotaExceeded": 6,
    "SliceLost": 7,
    "DeadlinePassed": 8,
    "SecurityRefusal": 9,
    "HostKeyMismatch": 9,
    "VerificationFailed": 10,
    "ProvisionFailed": 10,
    "SmokeFailed": 10,
    "DevicesBusy": 10,
    "Interrupted": 130,
    "Terminated": 143,
    "TransportFailed": 255,
    "AuthenticationFailed": 255,
    "Unanswered": 255,
}


def test_every_error_has_the_exit_code_of_the_contract() -> None:
    found = {
        name: value.exit_code
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, TpukitError)
    }
    assert found == CODES


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    drawn = {
        line.lstrip(" │├└─").split()[0]: int(line.lstrip(" │├└─").split()[1])
        for line in (errors.__doc__ or "").splitlines()
        if "─" in line or line.strip().startswith("TpukitError")
    }
    assert drawn == CODES


def test_an_error_has_one_labelled_line_for_each_fact() -> None:
    error = BadInput(
        "no such zone",
        reason="flag --zone",
        why="one\ntwo",
        exists=["a", "b"],
        fix=Fix.command("tpukit", "types"),
    )
    assert error.lines() == [
        "error: no such zone (flag --zone)",
        "why: one\n     two",
        "exists: a",
        "exists: b",
        "fix: tpukit types",
    ]


def test_an_error_without_facts_is_one_line() -> None:
    assert TpukitError("it failed").lines() == ["error: it failed"]


def test_the_summary_of_an_error_is_one_phrase() -> None:
    assert TpukitError("a", reason="b", why="c").summary() == "a (b): c"
    assert TpukitError("a").summary() == "a"


def test_the_document_of_an_error_holds_every_fact_under_a_stable_key() -> None:
    fix = Fix.command("tpukit", "types", "v 3", note="n")
    document = BadInput("what", reason="r", why="w", exists=["e"], fix=fix).document()
    assert document == {
        "code": 2,
        "kind": "BadInput",
        "message": "what",
        "reason": "r",
        "why": "w",
        "exists": ["e"],
        "fix": "tpukit types 'v 3'",
        "fix_arguments": ["tpukit", "types", "v 3"],
        "fix_note": "n",
    }


def test_a_fix_is_words_a_note_or_both_and_quotes_its_words() -> None:
    assert str(Fix.command("tpukit", "delete", "it's")) == """tpukit delete 'it'"'"'s'"""
    assert str(Fix(note="choose another name")) == "choose another name"
    error = BadInput("x", fix=Fix(note="wait"), otherwise=Fix.command("tpukit", "list"))
    assert error.lines() == ["error: x", "fix: wait", "fix: tpukit list"]


def test_details_are_in_the_document_only_where_there_are_some() -> None:
    assert TpukitError("a", details={"workers": []}).document()["details"] == {"workers": []}
    assert "details" not in TpukitError("a").document()


class Elsewhere(TpukitError):
    pass


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (BadInput, BadInput),
        (errors.HostKeyMismatch, errors.HostKeyMismatch),
        (Elsewhere, TpukitError),
    ],
)
def test_an_error_of_another_process_is_the_same_error_here(
    told: type[TpukitError], kind: type[TpukitError]
) -> None:
    fixes = {"fix": Fix.command("tpukit", "list", note="n"), "otherwise": Fix(note="wait")}
    error = told("what", reason="r", why="w", exists=["e"], **fixes, details={"a": 1})
    document = error.document()
    result = errors.from_document(document)
    assert type(result) is kind
    assert {**result.document(), "kind": "", "code": 0} == {**document, "kind": "", "code": 0}


@pytest.mark.parametrize("told", [1, [], "x", {}, {"kind": "BadInput"}])
def test_what_is_no_error_s_document_makes_none(told: Any) -> None:
    with pytest.raises((KeyError, TypeError)):
        errors.from_document(told)


@pytest.mark.parametrize(
    ("signal", "kind"), [(KeyboardInterrupt(), Interrupted), (TerminationSignal(), Terminated)]
)
def test_each_signal_becomes_its_own_error(
    signal: KeyboardInterrupt, kind: type[TpukitError]
) -> None:
    assert type(interruption(signal)) is kind
