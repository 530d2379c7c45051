"""A test that passes only on a second attempt is named, with the traceback of its first one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import second_attempts

pytestmark = pytest.mark.process

TESTS = """
from pathlib import Path
import pytest

def attempts(name):
    file = Path(name)
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    return len(file.read_text())

def test_steady():
    pass

def test_fails_once():
    assert attempts("once") == 2, "the first attempt"

def test_fails_always():
    assert attempts("always") == 9, "every attempt"

@pytest.fixture
def shaky():
    assert attempts("fixture") == 2, "the first attempt of a fixture"

def test_whose_fixture_fails_once(shaky):
    pass
"""


def pytest_run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(TESTS)
    support = Path(second_attempts.__file__).parent.parent
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-n1", "-psupport.second_attempts"]
    return subprocess.run(
        [*pytest_, "--reruns=1", *words, "test_it.py"],
        cwd=folder,
        env={**own, "PYTHONPATH": str(support), second_attempts.VARIABLE: str(folder / "told")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_they_are_the_last_lines_and_those_of_a_file(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, "--deselect=test_it.py::test_fails_always")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-3:] == [
        "PASSED ONLY ON A SECOND ATTEMPT: test_it.py::test_fails_once",
        "PASSED ONLY ON A SECOND ATTEMPT: test_it.py::test_whose_fixture_fails_once",
        "File an issue for each: the tracebacks are above.",
    ]
    told = (tmp_path / "told").read_text()
    assert done.stdout.endswith(told)
    assert "AssertionError: the first attempt\n" in told
    assert "AssertionError: the first attempt of a fixture\n" in told


def test_one_that_fails_again_is_a_failure_alone(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, "-k", "always or steady")
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 rerun" in done.stdout
    assert "SECOND ATTEMPT" not in done.stdout
    told = (tmp_path / "told").read_text()
    assert "AssertionError: every attempt\n" in told
    assert told.endswith("\n\nFAILED: test_it.py::test_fails_always\n")
