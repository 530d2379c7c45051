"""Ten rounds of scripts/crashes, which has two hundred: kills, full disks, jumping clocks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.journey, pytest.mark.kills]

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "crashes.py"


def test_nothing_acknowledged_is_lost_and_nothing_is_left_behind():
    done = subprocess.run([sys.executable, SCRIPT, "10"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = r"10 rounds, (\d+) kills, (\d+) times another clock, (\d+) writes acknowledged"
    said = re.search(figures, done.stdout)
    assert said, done.stdout
    assert int(said[1]) > 5
    assert int(said[2]) > 2
    assert int(said[3]) > 20
