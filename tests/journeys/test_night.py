"""A night in the life, short: scripts/night is where anyone runs the long one."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script's module: which fault strikes whom and when."""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "nights")
    return importlib.import_module("plan")


def test_a_seed_is_a_night_of_every_kind_of_fault(plan: Any) -> None:
    first = plan.night(1, 100, 600.0)
    assert plan.night(1, 100, 600.0) == first != plan.night(2, 100, 600.0)
    kinds = Counter(event.kind for event in first)
    assert (kinds["push"], kinds["cp"], kinds["reboot"], kinds["full disk"]) == (2, 3, 1, 2)
    assert set(kinds) >= {"reset", "stall", "restart", "moved", "client killed", "run"}
    assert sum(kinds.values()) - kinds["push"] - kinds["cp"] - kinds["run"] == 100


def test_no_fault_strikes_a_worker_that_another_one_holds(plan: Any) -> None:
    for seed in range(20):
        free_at: dict[int, float] = defaultdict(float)
        for each in plan.night(seed, 100, 600.0):
            if each.worker >= 0:
                assert each.at >= free_at[each.worker]
                free_at[each.worker] = each.at + each.seconds


@pytest.mark.journey
@pytest.mark.night
def test_a_short_night_loses_no_line_no_file_and_leaves_no_process() -> None:
    seed = os.environ.get("TPUKIT_JOURNEY_SEED") or str(random.randrange(10**6))
    done = subprocess.run(
        [sys.executable, "scripts/nights", "--seed", seed, "--faults", "10", "--minutes", "0.5"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    if done.returncode == 2:
        pytest.skip(f"{done.stdout.strip()}: a night is NOT checked by this run")
    assert done.returncode == 0, done.stdout + done.stderr
