"""`tpukit explain`: words, stdin, and texts of which nothing is known."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from cli.conftest import Run

STOCKOUT = 'There is no more capacity in the zone "us-central2-b"'


def piped(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_words_are_explained_with_cause_and_fix(run: Run) -> None:
    told = run("explain", *STOCKOUT.split(), "--json").document["explanations"]
    assert [known["id"] for known in told] == ["stockout"]
    assert told[0]["retry"] == "other-zone"
    assert "not your quota" in told[0]["cause"]
    assert run("explain", "stockout").out.startswith("stockout\tGoogle has no free slice")
    assert "does not come back" in run("explain", "preempted").out


def test_an_explanation_names_its_entry_in_the_documentation(run: Run) -> None:
    root = Path(__file__).parents[2]
    for text in ("stockout", "6"):
        (known,) = run("explain", text, "--json").document["explanations"]
        page, _, anchor = known["page"].partition("#")
        entry = f"\n### {anchor}\n" if anchor else "\n| 6 | `NoCapacity` |"
        assert entry in (root / page).read_text(encoding="utf-8")


def test_a_log_from_a_pipe_is_explained(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(
        monkeypatch,
        b"step 1\n" * 20_000 + b"\xffTPU_LIBRARY_PATH is set to a non-existent path: /x\n",
    )
    assert run("explain").out.startswith("tpu-library-path\t")


def test_what_tpukit_has_printed_is_explained(run: Run) -> None:
    failed = run("extend", "demo", "--ttl", "8").says(2).err
    told = run("explain", failed).out
    assert told.startswith("BadInput\t--ttl 8 has no unit: exit 2: the command line")
    assert "\t--ttl 8h or --ttl 8m\t" in told
    both = run("explain", f"error: no slice a in any zone of the project\n{STOCKOUT}", "--json")
    roles = [(one["id"], one["role"]) for one in both.document["explanations"]]
    assert roles == [("stockout", "cause"), ("NotFound", "wrapper")]


def test_an_unknown_text_is_an_error_and_no_text_a_wrong_use(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nothing is known" in run("explain", "all is well").says(1).err
    piped(monkeypatch, b"")
    assert "the text is empty" in run("explain").says(1).err
    monkeypatch.setattr(sys, "stdin", None)
    assert "no text to explain" in run("explain").says(2).err


def test_a_remedy_that_is_a_command_has_the_flags_that_it_needs(run: Run) -> None:
    assert "tpukit --local list: shows" in run("--local", "explain", "exit 3").out
    busy = "The TPU is already in use by process with pid 4711."
    assert "tpukit smoke NAME --level 0 shows it" in run("explain", busy).out


def test_escape_codes_of_the_text_do_not_reach_the_terminal(run: Run) -> None:
    told = run("explain", "\x1b[31mReservation not found\x1b[0m")
    assert told.status == 0
    assert "\x1b" not in told.out + told.err
