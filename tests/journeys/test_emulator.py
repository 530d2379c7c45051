"""The emulator as a machine among others: it can be switched off, pulled out, and comes back."""

from __future__ import annotations

import json
import os
import secrets
import signal

import psutil
import pytest
from support.command_line import Tpukit
from support.processes import eventually, sleepers

pytestmark = pytest.mark.journey


def test_a_slice_outlives_the_emulator_that_made_it(tpukit: Tpukit) -> None:
    before = _described(tpukit)
    tpukit.succeeds("emulator", "stop")
    eventually(lambda: not tpukit.processes())
    tpukit.succeeds("emulator", "start")
    assert _described(tpukit) == before
    document = tpukit.document("--local", "up", "v3-8", "demo")
    assert document["changes"] == 0
    assert document["smoke"]["ok"]


def _described(tpukit: Tpukit) -> dict[str, object]:
    """Return what there is of the slice but the hours that it was used."""
    found = tpukit.document("--local", "describe", "demo")["slice"]
    del found["lifetime"]["hours"]
    return found


@pytest.mark.parametrize("victims", [["pid"], ["guardian"]], ids=["emulator", "guardian"])
def test_a_killed_emulator_takes_every_process_with_it_and_keeps_its_slices(
    alone: Tpukit, victims: list[str]
) -> None:
    busy = _make_busy(alone)
    _kill(alone, victims)
    eventually(lambda: not alone.processes() and not sleepers(busy))
    (slice_,) = alone.slices("busy")
    assert slice_["state"] == "READY"


def test_what_an_emulator_killed_with_its_guardian_left_is_ended_by_the_next(
    alone: Tpukit,
) -> None:
    busy = _make_busy(alone)
    _kill(alone, ["guardian", "pid"])
    assert alone.slices("busy")
    eventually(lambda: not sleepers(busy))


def test_a_python_file_where_the_user_stands_is_not_imported(alone: Tpukit) -> None:
    for name in ("random", "logging", "tpukit"):
        (alone.home / f"{name}.py").write_text("raise SystemExit('imported by mistake')\n")
    alone.succeeds("emulator", "start")
    assert alone.document("--local", "list")["slices"] == []


def _make_busy(tpukit: Tpukit) -> str:
    """Make a slice whose worker runs two programs that nobody waits for; return their argument."""
    tpukit.succeeds("emulator", "start", "--create-seconds", "0.2")
    tpukit.succeeds("--local", "create", "v3-8", "busy")
    tpukit.succeeds("--local", "firewall", "apply", "busy")
    seconds = f"3600.{secrets.randbelow(10**12)}"
    sleep = f"sleep {seconds} >/dev/null 2>&1 </dev/null"
    tpukit.succeeds("--local", "ssh", "busy", "--", f"setsid {sleep} & setsid -f {sleep}")
    eventually(lambda: len(sleepers(seconds)) == 2)
    return seconds


def _kill(tpukit: Tpukit, victims: list[str]) -> None:
    (file,) = tpukit.home.rglob("emulator.json")
    running = json.loads(file.read_text())
    for victim in victims:
        assert "tpukit.emulator" in psutil.Process(running[victim]).cmdline()
        os.kill(running[victim], signal.SIGKILL)
