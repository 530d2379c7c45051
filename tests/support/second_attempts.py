"""A plugin of pytest: names every test that passed only on a second attempt, in the last lines.

Such a run is a success by its status. The test is wrong all the same, or tpukit is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

#: Names a file to which the same lines are added, if it is set.
VARIABLE = "SECOND_ATTEMPTS"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print them below pytest's own summary, each with its traceback."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    text = told(reporter.stats)
    reporter.write(text)
    if text and (file := os.environ.get(VARIABLE)):
        with Path(file).open("a") as told_file:
            told_file.write(text)


def told(reports: dict[str, list[Any]]) -> str:
    """Return the text for pytest's reports by their outcome; nothing if no test needed it."""
    failed = {report.nodeid for kind in ("failed", "error") for report in reports.get(kind, ())}
    first = [report for report in reports.get("rerun", ()) if report.nodeid not in failed]
    if not first:
        return ""
    parts = [f"{report.longreprtext}\n\n" for report in first]
    names = [f"PASSED ONLY ON A SECOND ATTEMPT: {report.nodeid}\n" for report in first]
    return "".join([*parts, *names, "File an issue for each: the tracebacks are above.\n"])
