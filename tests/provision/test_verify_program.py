"""The program that a worker's environment imports its framework with, run as there."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "tpukit/provision/verify_program.py"
PYTEST = f"pytest=={importlib.metadata.version('pytest')}"


def verify(modules: str, *pins: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", str(PROGRAM), modules, *pins]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_what_is_installed_as_pinned_is_imported() -> None:
    done = verify("pytest,json", PYTEST)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        PYTEST.replace("==", " "),
        "imported pytest",
        "imported json",
    ]


def test_without_modules_only_the_versions_are_compared() -> None:
    done = verify("", PYTEST)
    assert (done.returncode, done.stdout) == (0, PYTEST.replace("==", " ") + "\n")


@pytest.mark.parametrize(
    ("modules", "pin", "cause"),
    [
        ("json", "pytest==0.1", "is installed, but 0.1 is pinned"),
        ("json", "no-such-distribution==1", "no-such-distribution"),
        ("no_such_module", PYTEST, "No module named 'no_such_module'"),
        # The pin alone is no driver: it has to be there, with something in it.
        ("json", "libtpu", "libtpu"),
    ],
)
def test_what_does_not_hold_is_named(modules: str, pin: str, cause: str) -> None:
    done = verify(modules, pin)
    assert done.returncode == 1
    assert cause in done.stderr
