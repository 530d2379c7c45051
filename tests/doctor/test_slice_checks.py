"""`tpukit doctor NAME` on a slice whose workers are real SSH servers, whole and broken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.command_line import Tpukit
from support.local_cloud import let_everybody_in
from support.openssh_workers import running
from support.processes import eventually

from tpukit.doctor import slice_checks
from tpukit.smoke.loads import WorkerLoad
from tpukit.smoke.smoke_report import SmokeReport, WorkerSmokeReport

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tpukit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpukit]:
    tpukit = Tpukit(tmp_path_factory.mktemp("doctor"), {"TPUKIT_LOCAL": "1"})
    tpukit.succeeds("emulator", "start", "--create-seconds", "0.2")
    let_everybody_in(tpukit.document("emulator", "env")["environment"], allowed=False)
    tpukit.succeeds("create", "v4-16", "pair")
    yield tpukit
    tpukit("emulator", "stop")


def findings(tpukit: Tpukit) -> dict[str, Mapping[str, Any]]:
    done = tpukit("doctor", "pair", "--json", "--timeout", "20s")
    return {row["check"]: row for row in json.loads(done.stdout)["findings"]}


def test_every_worker_of_a_healthy_slice_is_looked_at(tpukit: Tpukit) -> None:
    tpukit.succeeds("run", "pair", "--detach", "--run-id", "train", "--", "sleep 600")
    seen = findings(tpukit)
    for worker in (0, 1):
        parts = ("runs", "chips", "memory", "disk")
        told = {part: seen[f"worker {worker}, {part}"] for part in parts}
        assert {row["outcome"] for row in told.values()} == {"ok"}, told
        assert told["runs"]["said"] == "train"
        assert "stand in" in told["chips"]["said"]
    assert seen["slice"]["outcome"] == "ok"


def test_an_attached_run_is_a_run_too(tpukit: Tpukit) -> None:
    before = findings(tpukit)["worker 1, runs"]["said"]
    with running(tpukit, "run", "pair", "--worker", "1", "--", "sleep 600"):
        eventually(lambda: findings(tpukit)["worker 1, runs"]["said"] != before)


def test_a_worker_that_does_not_answer_is_named_and_the_other_one_is_looked_at(
    tpukit: Tpukit,
) -> None:
    tpukit.succeeds("emulator", "worker", "pair", "1", "--fault", "refusing")
    seen = findings(tpukit)
    assert seen["worker 1"]["outcome"] == "failure"
    assert seen["worker 0, chips"]["outcome"] == "ok"
    tpukit.succeeds("emulator", "worker", "pair", "all", "--clear")


#: A process outside of every run that holds a device.
HOLD = (
    "mkdir -p ~/.tpukit/emulated-devices; touch ~/.tpukit/emulated-devices/accel0; "
    '(setsid env -i sh -c "exec 3<$HOME/.tpukit/emulated-devices/accel0; exec sleep 600" '
    "</dev/null >/dev/null 2>&1 &)"
)


def test_a_rule_that_is_missing_is_named_and_fix_makes_it(tpukit: Tpukit) -> None:
    assert findings(tpukit)["firewall"]["outcome"] == "ok"
    tpukit.succeeds("firewall", "remove", "pair")
    seen = findings(tpukit)
    assert seen["firewall"]["outcome"] == "failure"
    assert "no firewall rule of network default admits tcp:22" in seen["firewall"]["said"]
    assert "firewall apply pair" in " ".join(seen["firewall"]["fix"]["arguments"])
    done = tpukit("doctor", "pair", "--fix", "--json", "--timeout", "20s")
    assert "opened: tcp:22 from" in done.stderr
    rows = {row["check"]: row["outcome"] for row in json.loads(done.stdout)["findings"]}
    assert (rows["firewall"], rows["worker 0, chips"]) == ("ok", "ok")


def test_a_slice_is_clean_unless_a_process_holds_a_device(tpukit: Tpukit) -> None:
    tpukit.succeeds("kill", "pair", "--all")
    clean = tpukit.document("doctor", "pair", "--clean")["findings"]
    assert [row["check"] for row in clean] == ["clean slice"]
    tpukit.succeeds("run", "pair", "--clean", "--", "true")
    tpukit.succeeds("run", "pair", "--worker", "1", "--", HOLD)
    eventually(lambda: tpukit("doctor", "pair", "--clean").returncode == 1)
    (row,) = json.loads(tpukit("doctor", "pair", "--clean", "--json").stdout)["findings"]
    assert "worker 1: the devices are busy with PID" in row["said"]
    assert "kill pair --all-holders" in " ".join(row["fix"]["arguments"])
    for verb in ("run", "watch"):
        refused = tpukit.ends_with(10, verb, "pair", "--clean", "--", "touch should-not-be-there")
        assert "slice pair is not clean" in refused.stderr
    tpukit.succeeds("kill", "pair", "--all-holders")
    tpukit.succeeds("run", "pair", "--clean", "--", "! ls should-not-be-there")


@pytest.mark.parametrize(("used", "outcome"), [(95, "ok"), (96, "warning")])
def test_a_full_memory_and_a_full_disk_are_warnings(used: int, outcome: str) -> None:
    load = WorkerLoad(
        processors=1, busy=0, load=0, received=0, sent=0,
        memory_used=used, memory_total=100, disk_used=used, disk_total=100,
    )  # fmt: skip
    room = {row.check: row for row in slice_checks.room_findings(1, load)}
    assert {row.outcome for row in room.values()} == {outcome}
    assert all(row.fix for row in room.values()) == (outcome == "warning")
    assert [*room] == ["worker 1, memory", "worker 1, disk"]


def test_a_worker_whose_clock_differs_is_a_failure() -> None:
    finding = slice_checks.clock_finding("worker 0", 1000.0, 1000.0 - 300.0)
    assert finding
    assert finding.outcome == "failure"
    assert "5 min ahead" in finding.said
    assert slice_checks.clock_finding("worker 0", 1000.0, 1030.0) is None


def test_a_holder_of_a_chip_is_a_failure_whose_fix_ends_it() -> None:
    busy = WorkerSmokeReport(0, error="the devices are busy with python3 (4242)")
    broken = WorkerSmokeReport(1, error="3 of 4 chips on the PCI bus")
    held, missing = slice_checks.chip_findings(SmokeReport("", (busy, broken), level=0), "pod")
    assert str(held.fix) == "tpukit kill pod --all-holders"
    assert (held.outcome, missing.outcome, missing.fix) == ("failure", "failure", None)
