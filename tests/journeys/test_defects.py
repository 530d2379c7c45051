"""The table of gcloud's defects is made by running both, and tpukit does what it promises there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import needs_gcloud

pytestmark = pytest.mark.journey

ROOT = Path(__file__).parent.parent.parent
#: Those in which gcloud does not try ten times, five seconds apart.
QUICK = (
    "subset_status",
    "output_directory",
    "impostor",
    "standard_input",
    "whose_output",
    "key_expiry",
    "tunnel",
    "batches",
    "newer_generation",
)


def defects(*names: str) -> subprocess.CompletedProcess[str]:
    """Run `scripts/defects` with this interpreter."""
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [str(ROOT / "scripts" / "defects"), *names],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_in_every_row_tpukit_is_right_and_gcloud_is_not() -> None:
    needs_gcloud("the table of gcloud's defects")
    if os.geteuid():
        pytest.skip("not root: gcloud's port 22 is out of reach, the defects are NOT compared")
    done = defects(*QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    header, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert header == ["defect", "gcloud", "tpukit"]
    assert len(rows) == len(QUICK)
    assert [ours.partition(":")[0] for _, _, ours in rows] == ["right"] * len(rows)
    assert [theirs.partition(":")[0] for _, theirs, _ in rows] == ["WRONG"] * len(rows)


def test_a_defect_that_is_not_listed_is_refused() -> None:
    done = defects("none-such")
    assert done.returncode == 2
    assert "no none-such; there are subset_status" in done.stderr
