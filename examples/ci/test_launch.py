"""The same checks as job.sh, as pytest tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tpukit.emulator import Emulator

LAUNCH = Path(__file__).parent / "launch.sh"


def launch(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LAUNCH, name], capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAUSE", "0")


def test_two_stockouts_are_survived(emulated_tpu: Emulator) -> None:
    emulated_tpu.add_fault({"preset": "stockout", "name": "short", "times": 2})
    done = launch("short")
    assert done.returncode == 0, done.stderr
    assert emulated_tpu.served() == 2
    assert len(emulated_tpu.requests("nodes.create")) == 3


def test_a_lost_slice_is_made_again(emulated_tpu: Emulator) -> None:
    launch("lost")
    emulated_tpu.preempt("lost")
    done = launch("lost")
    assert "lost was lost" in done.stdout
    assert done.returncode == 0, done.stderr


def test_a_missing_permission_ends_the_script_at_once(emulated_tpu: Emulator) -> None:
    emulated_tpu.add_fault({"preset": "permission-denied", "name": "denied", "times": 9})
    assert launch("denied").returncode == 4
    assert emulated_tpu.served() == 1
