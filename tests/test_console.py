"""The one place that prints: what goes to which stream, in which form."""

from __future__ import annotations

import io
import json
import re
from typing import IO, Any

import pytest

from tpukit.console import Cell, Console, View
from tpukit.errors import BadInput, Fix


class Stream(io.TextIOWrapper):
    """A stream over bytes that says whether it is a terminal."""

    def __init__(self, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        self.flush()
        data = self.buffer
        assert isinstance(data, io.BytesIO)
        return data.getvalue().decode("utf-8", "surrogateescape")


class Gone(io.StringIO):
    """A stream whose reader has left."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


TABLE = View(
    {"rows": 1},
    ("NAME", "STATE"),
    [["a\tb", "x\x1b[31m\ny"]],
    next=(Fix.command("tpukit", "list"),),
)
ERROR = BadInput(
    "what\x1b[2J", reason="r", why="one\ntwo", exists=["a slice"], fix=Fix.command("tpukit", "list")
)


def console(out: Stream, err: IO[str] | None = None, **given: Any) -> Console:
    return Console(out, err or Stream(), **given)


def test_a_table_in_a_pipe_is_one_row_a_line_with_tabs_between_cells() -> None:
    out = Stream()
    console(out).emit(TABLE)
    assert out.text() == "a b\tx\\x1b[31m y\n"


def test_a_table_on_a_terminal_has_its_columns_named() -> None:
    out = Stream(terminal=True)
    console(out, environ={}).emit(TABLE)
    assert "NAME" in out.text()
    assert "x\\x1b[31m y" in out.text()


def test_the_form_of_a_result_can_be_chosen() -> None:
    forms = {"tsv": "a b\tx\\x1b[31m y\n", "name": "a b\n"}
    for terminal in (False, True):
        for output, text in forms.items():
            out = Stream(terminal)
            console(out, output=output, environ={}).emit(TABLE)
            assert out.text() == text
    out = Stream()
    console(out, output="table", environ={}).emit(TABLE)
    assert out.text().splitlines()[0].split() == ["NAME", "STATE"]
    assert "\x1b" not in out.text()


@pytest.mark.parametrize(
    ("color", "environ", "coloured"),
    [
        ("", {}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("", {"CLICOLOR_FORCE": "1"}, True),
        ("", {"FORCE_COLOR": "1"}, True),
        ("", {"CLICOLOR_FORCE": "0", "FORCE_COLOR": ""}, False),
        ("", {"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
        ("never", {"CLICOLOR_FORCE": "1"}, False),
        ("auto", {"FORCE_COLOR": "1"}, True),
    ],
)
def test_colour_without_a_terminal_must_be_asked_for(
    color: str, environ: dict[str, str], coloured: bool
) -> None:
    out = Stream()
    shown = View({}, ("STATE",), [["READY"]])
    console(out, output="table", color=color, environ=environ).emit(shown)
    assert ("\x1b[32mREADY" in out.text()) is coloured


@pytest.mark.parametrize(
    ("color", "environ", "coloured"),
    [("", {}, True), ("never", {}, False), ("", {"CLICOLOR": "0"}, False)],
)
def test_colour_on_a_terminal_can_be_turned_off(
    color: str, environ: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Stream(terminal=True)
    console(out, color=color, environ=environ).emit(View({}, ("STATE",), [["READY"]]))
    assert ("\x1b[32mREADY" in out.text()) is coloured


def test_only_the_wanted_columns_are_shown_in_their_order() -> None:
    out = Stream()
    console(out).emit(TABLE.only(["STATE", "NAME"]))
    assert out.text() == "x\\x1b[31m y\ta b\n"


def test_markup_in_data_is_data() -> None:
    out = Stream(terminal=True)
    console(out).emit(View({}, ("NAME",), [["[bold]a[/bold]"], ["[link=https://x]b"]]))
    assert "[bold]a[/bold]" in out.text()
    assert "[link=https://x]b" in out.text()


def test_rows_without_columns_are_plain_lines_on_a_terminal_too() -> None:
    out = Stream(terminal=True)
    console(out).emit(View({}, rows=[["demo"]]))
    assert out.text() == "demo\n"


def test_json_is_one_versioned_document_of_ascii() -> None:
    out = Stream()
    console(out, as_json=True).emit(View({"name": "größe\x1b"}, rows=[["x"]]))
    assert json.loads(out.text()) == {"v": 1, "name": "größe\x1b"}
    assert out.text().isascii()
    assert "\x1b" not in out.text()


def test_the_next_command_is_narration() -> None:
    out, err = Stream(), Stream()
    console(out, err).emit(TABLE)
    assert err.text() == "next: tpukit list\n"
    console(out, err, as_json=True).emit(TABLE)
    assert json.loads(out.text().partition("\n")[2])["next"] == [
        {"arguments": ["tpukit", "list"], "note": ""}
    ]


def test_a_command_is_completed_wherever_it_is_shown() -> None:
    completed = Fix.command("tpukit", "--local", "list")
    out, err = Stream(), Stream()
    shown = console(out, err, complete=lambda fix: completed if fix.arguments else fix)
    shown.emit(TABLE)
    shown.suggest(Fix.command("tpukit", "list"))
    shown.fail(BadInput("x", fix=Fix(note="wait"), otherwise=Fix.command("tpukit", "list")))
    assert err.text().splitlines() == [
        *("next: tpukit --local list", "next: tpukit --local list"),
        *("error: x", "fix: wait", "fix: tpukit --local list"),
    ]


def test_what_is_odd_about_a_success_is_warned_of_even_where_all_is_quiet() -> None:
    for given in ({}, {"quiet": True}, {"as_json": True}):
        out, err = Stream(), Stream()
        console(out, err, **given).emit(View({}, warnings=["one", "two"]))
        assert err.text() == "warning: one\nwarning: two\n"


def test_quiet_silences_narration_and_neither_warnings_nor_errors() -> None:
    out, err = Stream(), Stream()
    quiet = console(out, err, quiet=True, verbose=True)
    quiet.say("a")
    quiet.detail("b")
    assert err.text() == ""
    quiet.warn("c")
    quiet.fail(BadInput("d"))
    assert err.text() == "warning: c\nerror: d\n"


@pytest.mark.parametrize("verbose", [True, False])
def test_details_are_for_who_asks_for_them(verbose: bool) -> None:
    err = Stream()
    console(Stream(), err, verbose=verbose).detail("a detail")
    assert bool(err.text()) is verbose


def test_an_error_for_people_is_labelled_lines_on_stderr() -> None:
    out, err = Stream(), Stream()
    console(out, err).fail(ERROR)
    assert out.text() == ""
    assert err.text().splitlines() == [
        "error: what\\x1b[2J (r)",
        "why: one",
        "     two",
        "exists: a slice",
        "fix: tpukit list",
    ]


def test_an_error_for_programs_is_the_one_document_on_stdout() -> None:
    out, err = Stream(), Stream()
    console(out, err, as_json=True).fail(ERROR)
    assert err.text().startswith("error: what"), "a log that keeps stderr alone shows it too"
    document = json.loads(out.text())
    assert document["v"] == 1
    assert document["error"]["code"] == 2


def test_a_command_for_programs_has_one_document_whatever_comes_after_it() -> None:
    out, err = Stream(terminal=True), Stream()
    shown = console(out, err, as_json=True)
    shown.emit(View({"port": 6006}))
    shown.emit(View({}, status=130))
    shown.fail(ERROR)
    assert json.loads(out.text()) == {"v": 1, "port": 6006}
    assert err.text().startswith("error: what"), "else nobody is told"


def test_narration_without_a_reader_stops_nothing() -> None:
    console(Stream(), Gone()).say("nobody hears")


def test_a_result_without_a_reader_is_not_passed_over() -> None:
    with pytest.raises(BrokenPipeError):
        Console(Gone(), Stream()).emit(TABLE)


HOSTILE = b"\x1b[31m\xff\x00\r\n"


def test_remote_bytes_pass_into_a_pipe_as_they_are() -> None:
    out = Stream()
    console(out).write_remote("stdout", HOSTILE)
    assert out.buffer.getvalue() == HOSTILE  # type: ignore[attr-defined]


def test_remote_bytes_pass_onto_a_terminal_without_what_it_obeys() -> None:
    out = Stream(terminal=True)
    console(out).write_remote("stdout", HOSTILE)
    assert out.text() == "\\x1b[31m\ufffd\\x00\n"


def test_a_letter_cut_in_two_is_whole_on_a_terminal_and_streams_do_not_mix() -> None:
    out, err = Stream(terminal=True), Stream(terminal=True)
    both = console(out, err)
    first, second = "ü".encode()[:1], "ü".encode()[1:]
    both.write_remote("stdout", first)
    both.write_remote("stderr", b"x")
    both.write_remote("stdout", second)
    assert out.text() == "ü"
    assert err.text() == "x"


def test_a_worker_s_line_is_marked_and_sanitized_in_a_pipe_too() -> None:
    out = Stream()
    console(out).write_prefixed("stdout", "[3] ", b"a\x1b[2Jb\n")
    assert out.text() == "[3] a\\x1b[2Jb\n"


WIDE = View(
    {},
    ("NAME", "ZONE", "STATE", "NOTE"),
    [["my-first-slice", "us-central2-b", "READY", "eight devices standing in for eight"]],
)


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 100, 200])
def test_no_word_is_ever_broken_however_narrow_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    out = Stream(terminal=True)
    console(out).emit(WIDE)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.text()).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= columns
    words = " ".join(lines).split()
    (row,) = WIDE.rows
    for word in " ".join(map(str, row)).split():
        assert word in words
    assert ("NAME" in words) == (columns >= 60), "a table where it fits, a card elsewhere"


@pytest.mark.parametrize("columns", [7, 8])
def test_a_table_takes_two_blanks_between_columns_and_no_column_more(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    out = Stream(terminal=True)
    console(out).emit(View({}, ("A", "LONG"), [["ab", "cd"]]))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.text()).splitlines()
    shown = [line.rstrip() for line in lines]
    if columns == 8:
        assert shown == ["A   LONG", "─" * 8, "ab  cd"]
    else:
        assert shown[0] == "a ab", "a card"


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(73, "NAME ZONE LABELS NOTE"), (72, "NAME ZONE NOTE"), (50, "NAME NOTE"), (23, "")],
)
def test_a_narrow_terminal_does_without_spare_columns_before_it_shows_cards(
    columns: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    cells = ("my-first-slice", "us-central2-b", "x" * 20, "eight devices standing in for eight")
    out = Stream(terminal=True)
    console(out).emit(
        View({}, ("NAME", "ZONE", "LABELS", "NOTE"), [cells], spare=("LABELS", "ZONE"))
    )
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.text()).splitlines()
    assert " ".join(lines[0].split()) == (shown or "name my-first-slice")
    told = re.sub(r"\s", "", out.text())
    assert ("x" * 20 in told) == (not shown or "LABELS" in shown), "a card has every column, whole"


def test_a_cell_can_be_in_other_words_on_a_terminal() -> None:
    view = View({}, ("AGE",), [[Cell("2026-11-22", "2 h ago")]])
    for terminal, said in ((True, "2 h ago"), (False, "2026-11-22")):
        out = Stream(terminal=terminal)
        console(out).emit(view)
        assert said in out.text()
