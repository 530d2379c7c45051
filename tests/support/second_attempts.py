"""A plugin of pytest: names every test that passed only on a second attempt, in the last lines.

Such a run is a success by its status. The test is wrong all the same, or tpukit is. A run of
several stages collects these lines and the failures in a file, and prints it at its end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

#: Names a file to which these lines and the failures are added, if it is set.
VARIABLE = "SECOND_ATTEMPTS"
#: Characters of a failure that are kept: the end of a traceback says what failed.
KEPT = 3000


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print them below pytest's own summary, each with its traceback."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    text = told(reporter.stats)
    reporter.write(text)
    keep(text + failures(reporter.stats))


def keep(text: str) -> None:
    """Add a text to the last lines of a run of several stages."""
    if file := os.environ.get(VARIABLE):
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


def failures(reports: dict[str, list[Any]]) -> str:
    """Return the text about tests that failed, from pytest's reports by their outcome."""
    failed = [report for kind in ("failed", "error") for report in reports.get(kind, ())]
    return "".join(
        f"{report.longreprtext[-KEPT:]}\n\nFAILED: {report.nodeid}\n" for report in failed
    )
