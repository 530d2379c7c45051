"""A plugin of pytest: what coverage keeps of all that tests start is cheap to keep, and whole."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.run_servers import end_servers

_SETTINGS = "COVERAGE_PROCESS_CONFIG"
_settings = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def coverage_settings(pytestconfig: pytest.Config) -> str:
    """By what a started Python takes part in the coverage of this run; empty: there is none."""
    return pytestconfig.stash[_settings]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Let what an unmeasured test starts run at its own speed."""
    hidden = item.get_closest_marker("unmeasured") and os.environ.pop(_SETTINGS, None)
    try:
        return (yield)
    finally:
        if hidden:
            os.environ[_SETTINGS] = hidden


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Let a process keep what it ran alone: a process of pytest names the files that nobody ran.

    It takes a command longer to look for those than to keep what it ran.
    """
    if settings := os.environ.get(_SETTINGS):
        from coverage.config import CoverageConfig

        config = CoverageConfig.deserialize(settings)
        config.run_include = [f"{each}/*" for each in config.source_dirs]
        config.source_dirs = []
        os.environ[_SETTINGS] = config.serialize()
    session.config.stash[_settings] = os.environ.get(_SETTINGS, "")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Before all is combined, have what servers ran, and remove what was killed as it wrote."""
    result = yield
    end_servers(session.config)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        remove_damaged(session.config.rootpath)
    return result


def remove_damaged(folder: Path) -> None:
    """Remove data of coverage that was not finished, of which its `combine` would fail."""
    for path in folder.glob(".coverage.*.pid*"):
        # A file that is finished has the hash of its data as the end of its name.
        if ".H" not in path.name and not _is_whole(path):
            path.unlink(missing_ok=True)


def _is_whole(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as data:
            version = data.execute("SELECT version FROM coverage_schema").fetchone()
            return bool(version) and data.execute("PRAGMA quick_check").fetchone() == ("ok",)
    except sqlite3.Error:
        return False
