"""A plugin of pytest: CI runs a test twice only if the machine's programs can matter to it.

The first stage of CI runs most tests on a bare machine. A file, which TPUKIT_PASSED_TESTS names,
gets the names of those that passed there. With --without-passed, a later run leaves them out. A
test that takes a program of the machine if there is one, and does without it otherwise, is not
among them: `note_choice` says so. A test that needs such a program was skipped, so it runs, too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "TPUKIT_PASSED_TESTS"
_CHOICE = ("takes a program if there is one", True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-passed", action="store_true", help=f"leave out those of {VARIABLE}")


def note_choice(request: pytest.FixtureRequest) -> None:
    """Note that the test would take a program of the machine, which may have none."""
    request.node.user_properties.append(_CHOICE)


def _file() -> Path | None:
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Note what passed, in the process that reports on all others."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    file = _file()
    if file is None or reporter is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    # pytest-xdist adds "@" and the group's name, and sends lists in place of tuples.
    passed = {
        report.nodeid.rpartition("@")[0]
        for report in reporter.stats.get("passed", ())
        if _CHOICE not in map(tuple, report.user_properties)
    }
    with file.open("a") as names:
        names.writelines(f"{name}\n" for name in sorted(passed))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist names the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed where the machine's programs made no difference."""
    file = _file()
    if not config.getoption("without_passed") or file is None or not file.exists():
        return
    passed = set(file.read_text().splitlines())
    done = [item for item in items if item.nodeid in passed]
    config.hook.pytest_deselected(items=done)
    items[:] = [item for item in items if item not in set(done)]
