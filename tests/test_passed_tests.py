"""CI's last stage leaves out what has passed on the bare machine, except what can differ here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import passed_tests

pytestmark = pytest.mark.process

TESTS = """
import pytest
from support.passed_tests import note_choice

@pytest.mark.parametrize("word", ["a", "b@c"])
def test_passes(word): pass

def test_skips(): pytest.skip("not here")

def test_fails(): assert False

@pytest.fixture
def worker(request): note_choice(request)

def test_takes_what_there_is(worker): pass
"""


def pytest_run(folder: Path, *words: str) -> list[str]:
    support = Path(passed_tests.__file__).parent.parent
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n1", "-psupport.passed_tests", *words],
        cwd=folder,
        env={**own, "PYTHONPATH": str(support), passed_tests.VARIABLE: str(folder / "passed")},
        capture_output=True,
        text=True,
        check=False,
    )
    return sorted(
        line.split()[-1]
        for line in done.stdout.splitlines()
        if line.startswith("[gw0]") and "::" in line
    )


def test_what_passed_runs_again_only_if_it_takes_a_program_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    # As the project's conftest does for all tests: each has a group, which is part of its name.
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items: item.add_marker(pytest.mark.xdist_group('g'))\n"
    )
    assert len(pytest_run(tmp_path, "--dist=loadgroup")) == 5
    assert pytest_run(tmp_path, "--dist=loadgroup", "--without-passed") == [
        "test_a.py::test_fails@g",
        "test_a.py::test_skips@g",
        "test_a.py::test_takes_what_there_is@g",
    ]
