"""The two gates of text, against a hostile corpus."""

from __future__ import annotations

import itertools
import subprocess
import time
import unicodedata

import pytest

from tpukit.text import one_line, quote, sanitize

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]8;;https://example.com\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31m C1 introducer",
    "bell\x07 back\x08\x08space",
    "over\rwritten",
    "\u202egnp.exe",
    "\u2066isolate\u2069",
    "a\u2028b\u2029c",
    "nul\x00 and del\x7f",
    "lone \ud800 surrogate",
    "\u200emark\u200f\u061c",
    "vertical\x0btab form\x0cfeed",
    "tag\U000e0001\U000e0041",
    "annotated\ufff9\ufffb\u206a",
]
CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"]


def harmless(text: str) -> bool:
    """Tell, by Unicode's categories, that a text has no control and no format characters."""
    return all(
        character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        for character in text
    )


@pytest.mark.parametrize("text", [*HOSTILE, *CONTROLS])
def test_nothing_that_a_terminal_obeys_passes(text: str) -> None:
    assert not harmless(text)
    assert harmless(sanitize(text))
    assert harmless(one_line(text))
    assert "\n" not in one_line(text)


@pytest.mark.parametrize("first", CONTROLS[:8])
def test_pairs_of_controls_do_not_make_one_either(first: str) -> None:
    assert all(
        harmless(sanitize(f"{first}{second}[31m")) for second in itertools.chain(CONTROLS, "\r\n\t")
    )


@pytest.mark.parametrize("text", ["plain", "Größe 東京 ✓", "tab\tand\nline", "[bold]markup[/bold]"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert sanitize(text) == text


def test_what_is_replaced_stays_visible() -> None:
    assert sanitize("\x1b[2J\u202e") == "\\x1b[2J\\u202e"


def test_hostile_text_holds_nobody_up() -> None:
    started = time.process_time()
    sanitize("\0" * 4_000_000)
    assert time.process_time() - started < 2.5  # one at a time took 5 s


def test_carriage_returns_become_line_ends() -> None:
    assert sanitize("10%\r20%\r\ndone") == "10%\n20%\ndone"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert sanitize(b"\xff\x1b[0mok") == "\ufffd\\x1b[0mok"


def test_one_line_folds_every_white_space() -> None:
    assert one_line("  a\r\nb\t\tc\n") == "a b c"


@pytest.mark.parametrize(
    "word",
    ["", " ", "a b", "$(touch x)", "`id`", "a;b", "a'b", 'a"b', "a\nb", "-rf", "*", "~", "ü", "\\"],
)
def test_a_quoted_word_reaches_a_real_shell_unchanged(word: str) -> None:
    line = quote(["printf", "%s", word])
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode() == word
