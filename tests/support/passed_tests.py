"""A plugin of pytest: CI runs a test twice only if the machine's programs can matter to it.

The first stage of CI runs most tests on a bare machine. A file, which TPUKIT_PASSED_TESTS names,
gets the names of those that passed there. With --without-passed, a later run leaves them out.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "TPUKIT_PASSED_TESTS"
#: Rooms whose tests meet sudo and the other programs of a machine: they run again.
_ROOMS = ("tests/agent/", "tests/provision/", "tests/remote/", "tests/smoke/", "tests/work/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-passed", action="store_true", help=f"leave out those of {VARIABLE}")


def _file() -> Path | None:
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Note what passed, in the process that reports on all others."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    file = _file()
    if file is None or reporter is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    # pytest-xdist adds "@" and the group's name.
    passed = {report.nodeid.rpartition("@")[0] for report in reporter.stats.get("passed", ())}
    with file.open("a") as names:
        names.writelines(f"{name}\n" for name in sorted(passed))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist names the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed, except in the rooms above."""
    file = _file()
    if not config.getoption("without_passed") or file is None or not file.exists():
        return
    passed = set(file.read_text().splitlines())
    done = [item for item in items if item.nodeid in passed and not item.nodeid.startswith(_ROOMS)]
    config.hook.pytest_deselected(items=done)
    items[:] = [item for item in items if item not in set(done)]
