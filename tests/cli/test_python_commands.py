"""Command lines that start Python, and the program of a line."""

from __future__ import annotations

import pytest

from tpukit.cli.python_commands import is_python, program


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python train.py", True),
        ("  python3 -m app", True),
        ("RATE=0.1 SEED=2 python train.py", True),
        ("NAME='two words' python train.py", True),
        ("env RATE=0.1 python train.py", True),
        ("env -i RATE=0.1 nohup nice -n 10 python3 train.py", True),
        ("timeout -k 10 1h python train.py", True),
        ("time -p python train.py", True),
        ("./python train.py", False),
        ("/usr/bin/python3 train.py", False),
        ("cd app && python train.py", False),
        ("bash -c 'python train.py'", False),
        ("echo a=1 python", False),
        ("-i python", False),
        ("pythonic", False),
        ("python 'not closed", False),
        ("A=1", False),
        ("env", False),
        ("", False),
    ],
)
def test_only_a_bare_name_is_python_s(line: str, expected: bool) -> None:
    assert is_python(line) is expected


def test_the_program_of_a_line_comes_after_variables_and_programs_that_run_it() -> None:
    assert program("A=1 env B=2 ./python train.py") == "./python"
    assert program("nohup torchrun train.py") == "torchrun"
    assert program("env") == ""
