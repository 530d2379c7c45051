"""Variables as they are typed, and as a shell reads them."""

from __future__ import annotations

import subprocess

import pytest

from tpukit.errors import BadInput
from tpukit.remote.command.environment import parse_assignments, parse_file, shell_lines


def test_a_value_survives_the_shell() -> None:
    for value in ["", "a b", "it's", "$HOME `id` \\", "two\nlines\n", "ä €", "-n"]:
        script = shell_lines({"VALUE": value}) + 'printf %s "$VALUE"'
        assert subprocess.check_output(["sh", "-c", script]).decode() == value


def test_a_bare_name_takes_its_value_from_here() -> None:
    assert parse_assignments(["A=1=2", "B"], {"B": "own"}) == {"A": "1=2", "B": "own"}


def test_a_file_has_a_variable_a_line() -> None:
    text = "# comment\n\nA=1\nexport B = two words \nC='quoted # text'\nD=\"x\"\nE\n"
    wanted = {"A": "1", "B": "two words", "C": "quoted # text", "D": "x", "E": "own"}
    assert parse_file(text, {"E": "own"}) == wanted


def test_what_no_shell_takes_is_refused() -> None:
    for word in ["", "=x", "1A=x", "A-B=x", "A B=x", "MISSING", "A=\0"]:
        with pytest.raises(BadInput):
            parse_assignments([word], {})
