"""The main job: from nothing to a slice on which every device has computed, and again."""

from __future__ import annotations

import json
import signal
import time

import pytest
from support.command_line import Tpukit

from journeys.conftest import FirstUp

pytestmark = pytest.mark.journey

#: A small package without dependencies, to be installed on top of the framework.
REQUIREMENT, MODULE = "einops==0.8.1", "einops"


def test_up_makes_a_verified_slice_out_of_nothing(first_up: FirstUp) -> None:
    done = first_up.finished
    assert done.returncode == 0, done.stderr
    assert "emulator started" in done.stderr
    (row,) = done.stdout.splitlines()
    cells = row.split("\t")
    assert cells[1:3] == ["8 of 8 devices", "cpu"]
    assert cells[-2:] == ["passed", "8 CPU devices standing in for 8 TPU cores"]


def test_the_provisioned_interpreter_is_the_workers_own(tpukit: Tpukit) -> None:
    program = "import os, sys, jax; print(os.environ['HOME'], sys.prefix, len(jax.devices()))"
    line = f'touch ~/mark && ~/.tpukit/venvs/jax/bin/python -c "{program}"'
    home, prefix, devices = tpukit.succeeds("--local", "ssh", "demo", "--", line).stdout.split()
    assert prefix == f"{home}/.tpukit/venvs/jax"
    assert devices == "8"
    # Whatever the worker calls its home, its files are kept below the emulator's folder.
    assert list(tpukit.home.rglob("mark"))


def test_a_second_up_changes_nothing_and_is_quick(tpukit: Tpukit) -> None:
    tpukit.succeeds("--local", "up", "v3-8", "demo")  # other tests install things into it
    started = time.monotonic()
    document = tpukit.document("--local", "up", "v3-8", "demo")
    assert time.monotonic() - started < 120
    assert (document["created"], document["changes"]) == (False, 0)
    assert document["smoke"]["ok"]


def test_a_later_up_knows_the_usual_times_of_the_stages_that_had_work(
    tpukit: Tpukit,
) -> None:
    tpukit.succeeds("--local", "up", "v3-8", "demo")
    known = json.loads((tpukit.home / "tpukit/state/stage_times.json").read_text())
    times = known["emulator v3-8 jax"]
    assert {"create", "connect", "provision", "smoke"} <= times.keys()
    assert len(times["create"]) == 1
    assert len(times["smoke"]) > 1
    assert times["provision"]


def test_up_can_measure_and_its_report_has_the_figures(tpukit: Tpukit) -> None:
    page = tpukit.home / "figures.html"
    words = ("--local", "up", "v3-8", "demo", "--measure", "--report", str(page))
    measured = tpukit.document(*words)["smoke"]["measurements"]
    assert {figure["what"] for figure in measured} >= {"matmul", "hbm"}
    text = page.read_text(encoding="utf-8")
    assert "<h2>Figures</h2>" in text
    assert "all-reduce" in text
    tpukit.ends_with(2, *words, "--keep")


def test_another_type_under_the_same_name_is_refused_and_leaves_the_slice_as_it_is(
    tpukit: Tpukit,
) -> None:
    before = tpukit.document("--local", "describe", "demo")
    done = tpukit.ends_with(5, "--local", "up", "v2-8", "demo")
    assert "accelerator type is v3-8, not v2-8" in done.stderr
    assert tpukit.document("--local", "describe", "demo") == before


def test_ctrl_c_while_requirements_are_installed_names_the_slice_and_up_goes_on(
    tpukit: Tpukit,
) -> None:
    (tpukit.home / "requirements.txt").write_text(f"{REQUIREMENT}\n")
    words = ("--local", "up", "v3-8", "demo", "--requirements", "requirements.txt")
    status, told = tpukit.interrupted(signal.SIGINT, lambda line: "requirements:" in line, *words)
    assert status == 130, told
    assert "slice demo in emulator-local1-a, READY" in told
    assert "fix: tpukit --local delete demo" in told
    document = tpukit.document(*words)
    (worker,) = document["provision"]["workers"]
    outcomes = {step["name"]: step["outcome"] for step in worker["steps"]}
    assert outcomes["packages"] == "unchanged", (told, worker["steps"])
    line = f"{worker['python']} -c 'import {MODULE}, jax'"
    tpukit.succeeds("--local", "ssh", "demo", "--", line)
    assert tpukit.document(*words)["changes"] == 0


def test_two_ups_of_one_name_at_once_end_with_one_slice(tpukit: Tpukit) -> None:
    both = [tpukit.start("--local", "up", "v3-8", "twice", "--json") for _ in range(2)]
    ends = [(process.communicate(timeout=500), process.returncode) for process in both]
    assert [status for _, status in ends] == [0, 0], ends
    reports = [json.loads(out) for (out, _), _ in ends]
    assert sorted(report["created"] for report in reports) == [False, True]
    assert all(report["smoke"]["ok"] for report in reports)
    assert (len(tpukit.slices("twice")), len(tpukit.rules("twice"))) == (1, 1)
    tpukit.succeeds("--local", "delete", "twice", "--yes")


def test_four_workers_add_up_sixteen_devices_and_run_what_they_are_told(tpukit: Tpukit) -> None:
    smoke = tpukit.document("--local", "up", "v4-32", "demo4")["smoke"]
    assert smoke["stand_in"] == "16 CPU devices standing in for 16 TPU chips"
    assert [worker["worker"] for worker in smoke["workers"]] == [0, 1, 2, 3]
    for worker in smoke["workers"]:
        assert (worker["devices"], worker["global_devices"], worker["processes"]) == (4, 16, 4)
        assert worker["global_sum"] == worker["global_sum_expected"] == sum(range(1, 17))

    run = ("--local", "run", "demo4")
    lines = tpukit.succeeds(*run, "--", "hostname").stdout.splitlines()
    assert sorted(line.split()[0] for line in lines) == ["[0]", "[1]", "[2]", "[3]"]
    assert len({line.split()[1] for line in lines}) == 4
    tpukit.ends_with(7, *run, "--worker", "2", "--", "exit 7")

    # Two clients at once take turns at the devices, which have one coordinator.
    both = [tpukit.start("--local", "smoke", "demo4") for _ in range(2)]
    ends = [(process.communicate(timeout=500), process.returncode) for process in both]
    assert [status for _, status in ends] == [0, 0], ends
    tpukit.succeeds("--local", "delete", "demo4", "--yes")
