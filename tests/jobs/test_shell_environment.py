"""Variables as they are typed, and as a shell reads them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tpukit.errors import BadInput
from tpukit.jobs.shell_environment import (
    launch,
    parse_assignments,
    parse_file,
    recipe_lines,
    shell_lines,
)
from tpukit.ssh import worker_files


def test_a_value_survives_the_shell() -> None:
    for value in ["", "a b", "it's", "$HOME `id` \\", "two\nlines\n", "ä €", "-n"]:
        script = shell_lines({"VALUE": value}) + 'printf %s "$VALUE"'
        assert subprocess.check_output(["sh", "-c", script]).decode() == value


def variable(home: Path, recipe_value: str, *, given: Mapping[str, str], own: str) -> str:
    """Return what a command sees of a recipe's variable A; `own` has lines that came before."""
    venv = home / worker_files.venv("small")
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    (venv / "bin/python").touch(0o755)
    (home / worker_files.venv_variables("small")).write_text(recipe_lines({"A": recipe_value}))
    script = own + shell_lines(given, "small") + launch('printf %s "$A"', {})
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.check_output(["sh", "-c", script], env=environment).decode()


def test_a_recipe_s_variable_is_set_unless_somebody_has_set_it(tmp_path: Path) -> None:
    cache = "TPUKIT_COMPILATION_CACHE"
    for value, given, own, seen in [
        ("it's $HOME `id`", {}, "", "it's $HOME `id`"),
        ("theirs", {"A": "mine"}, "", "mine"),
        ("theirs", {"A": ""}, "", ""),
        ("theirs", {}, "export A=worker\n", "worker"),
        ("theirs", {}, "export A=\n", ""),
        ("{compilation_cache}", {}, "", f"{tmp_path}/{worker_files.COMPILATION_CACHE}"),
        ("{compilation_cache}", {cache: "gs://b/my cache"}, "", "gs://b/my cache"),
        ("x {compilation_cache}/jax", {cache: "/mnt/$a"}, "", "x /mnt/$a/jax"),
    ]:
        assert variable(tmp_path, value, given=given, own=own) == seen, (value, given, own)


def test_a_bare_name_takes_its_value_from_here() -> None:
    assert parse_assignments(["A=1=2", "B"], {"B": "own"}) == {"A": "1=2", "B": "own"}


def test_a_file_has_a_variable_a_line() -> None:
    text = "# comment\n\nA=1\nexport B = two words \nC='quoted # text'\nD=\"x\"\nE\n"
    wanted = {"A": "1", "B": "two words", "C": "quoted # text", "D": "x", "E": "own"}
    assert parse_file(text.encode(), {"E": "own"}) == wanted


def test_a_file_s_lines_end_where_an_editor_ends_them() -> None:
    """Not within a value; and what some editors write before the first line is not its name's."""
    text = "\ufeffA=one\u2028two\r\nB=x\x0cy\r\n"
    assert parse_file(text.encode(), {}) == {"A": "one\u2028two", "B": "x\x0cy"}


def test_a_file_that_is_not_utf_8_is_refused_by_its_line() -> None:
    with pytest.raises(BadInput, match="line 2 of the environment file"):
        parse_file(b"A=1\nB=caf\xe9\n", {})


def test_what_no_shell_takes_is_refused() -> None:
    for word in ["", "=x", "1A=x", "A-B=x", "A B=x", "MISSING", "A=\0"]:
        with pytest.raises(BadInput):
            parse_assignments([word], {})


def test_only_our_words_in_braces_are_replaced() -> None:
    words = {"worker": "2", "workers": "4", "coordinator": "10.0.0.2"}
    for text, wanted in {
        "{worker} of {workers} by {coordinator}:8476": "2 of 4 by 10.0.0.2:8476",
        "--x={worker}{worker}": "--x=22",
        "awk '{print}' {a,b} {} {work er} {WORKER}": "awk '{print}' {a,b} {} {work er} {WORKER}",
        "${worker} ${{worker}} ${worker:-1}": "${worker} ${{worker}} ${worker:-1}",
        "{{worker}} { {worker} }": "{worker} { 2 }",
    }.items():
        echo = f"cat <<'END'\n{text}\nEND"
        done = subprocess.check_output(["sh", "-c", launch(echo, words)], env={"PATH": "/bin"})
        assert done.decode().rstrip("\n") == wanted


def test_a_command_finds_the_same_words_in_its_environment() -> None:
    script = shell_lines({"TPUKIT_WORKER": "2", "TPUKIT_SLICE_INDEX": "0"}) + launch("env", {})
    lines = subprocess.check_output(["sh", "-c", script]).decode().splitlines()
    assert {"TPUKIT_WORKER=2", "TPUKIT_SLICE_INDEX=0"} <= set(lines)
