"""A command outlives its slice, again and again; Ctrl-C says at once what exists."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.command_line import Tpukit
from support.pages import needs_gcloud
from support.processes import eventually

Factory = pytest.TempPathFactory

pytestmark = [pytest.mark.journey, pytest.mark.kills]

#: Counts from where the last one stopped, in a folder that outlives slices, as a bucket does.
JOB = """\
cd {folder} || exit 1
exec 9> lock
flock --nonblock 9 || { echo twice >> twice; exit 99; }
count=$(cat count 2> /dev/null || echo 0)
echo "$count" >> starts
while [ ! -e finish ]; do
  count=$((count + 1)); echo "$count" > count.new; mv count.new count; sleep 0.1
done
"""
#: Lines of narration of `up`, in their order, at which its slice is taken away.
STAGES = (
    r"create +|victim: .*CREATING|asking",
    r"made again",
    r"firewall +",
    r"connect +1 of 1",
    r"worker 0: uv: ",
)


@pytest.fixture
def portable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpukit]:
    """The program, and an emulator whose workers share this machine's files."""
    tpukit = Tpukit(tmp_path_factory.mktemp("recovery"), {"TPUKIT_LOCAL": "1"})
    tpukit.succeeds("emulator", "start", "--engine", "portable", "--create-seconds", "0.3")
    yield tpukit
    tpukit("emulator", "stop")


def number(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0


def lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def begun(starts: Path, times: int) -> bool:
    return len(lines(starts)) == times


def counted(count: Path, beyond: int) -> bool:
    return number(count) > beyond


@pytest.mark.parametrize("losses", [4, pytest.param(10, marks=pytest.mark.long)])
def test_a_job_goes_on_through_losses_in_a_row_and_never_runs_twice(
    portable: Tpukit, tmp_path: Path, losses: int
) -> None:
    """By turns as a state and as a vanished node; the watch itself is killed amid them."""
    job = tmp_path / "job.sh"
    job.write_text(JOB.replace("{folder}", str(tmp_path)))
    count, starts = tmp_path / "count", tmp_path / "starts"
    portable.succeeds("create", "v3-8", "demo", "--spot")
    watch = portable.start("watch", "demo", "--run-id", "train", "--", "sh", str(job))
    table = ["LOSS  HOW        COUNT BEFORE  RESUMED AT  SECONDS"]
    for loss in range(losses):
        eventually(partial(begun, starts, loss + 1))
        eventually(partial(counted, count, number(count) + 3))
        if loss == losses // 2:
            watch.kill()
            watch.communicate()
            watch = portable.start("watch", "demo")
        how = ("--vanish",) if loss % 2 else ()
        before, since = number(count), time.monotonic()
        portable.succeeds("emulator", "preempt", "demo", *how)
        eventually(partial(begun, starts, loss + 2), 120)
        seconds = time.monotonic() - since
        resumed = lines(starts)[-1]
        kind = "vanished" if how else "PREEMPTED"
        table.append(f"{loss + 1:<6}{kind:<11}{before:<14}{resumed:<12}{seconds:.1f}")
        assert before <= resumed <= before + 100, table
    (tmp_path / "finish").touch()
    out, err = watch.communicate(timeout=60)
    sys.stdout.write("\n".join(table) + "\n")
    assert watch.returncode == 0, out + err
    assert not (tmp_path / "twice").exists()
    assert lines(starts) == sorted(lines(starts))
    assert len(portable.slices("demo")) == len(portable.rules("demo")) == 1
    (listed,) = portable.document("watch", "--list")["watches"]
    assert (listed["state"], listed["status"], listed["recoveries"]) == ("ended", 0, losses)
    assert [event["event"] for event in listed["history"]].count("preempted") == losses // 2
    assert [event["event"] for event in listed["history"]].count("vanished") == losses // 2
    gcloud_deletes(portable, "demo")


def test_a_job_on_all_workers_of_a_group_of_compute_engine_goes_on_after_preemptions(
    portable: Tpukit, tmp_path: Path
) -> None:
    """The watch is killed between the two; no part of a former group is left."""
    both = {"TPUKIT_APIS": "tpu,compute", "TPUKIT_ZONE": "us-east5-b"}
    portable = replace(portable, variables={**portable.variables, **both})
    job, starts = tmp_path / "job.sh", [tmp_path / str(worker) / "starts" for worker in range(4)]
    job.write_text(JOB.replace("{folder}", f"{tmp_path}/$1").replace("-e finish", "-e ../finish"))
    for file in starts:
        file.parent.mkdir()
    portable.succeeds("create", "v6e-16", "demo", "--spot", "--api", "compute")
    command = ("sh", str(job), "{worker}")
    watch = portable.start("watch", "demo", "--run-id", "train", "--", *command)
    for loss in range(2):
        for file in starts:
            eventually(partial(begun, file, loss + 1), 120)
            eventually(partial(counted, file.parent / "count", lines(file)[-1] + 3))
        portable.succeeds("emulator", "preempt", "demo")
        if loss == 0:
            watch.kill()
            watch.communicate()
            watch = portable.start("watch", "demo")
    for file in starts:
        eventually(partial(begun, file, 3), 120)
    (tmp_path / "finish").touch()
    out, err = watch.communicate(timeout=60)
    assert watch.returncode == 0, out + err
    assert not list(tmp_path.glob("*/twice"))
    assert all(lines(file) == sorted(lines(file)) for file in starts)
    assert len(portable.slices("demo")) == len(portable.rules("demo")) == 1
    portable.succeeds("delete", "demo", "--yes")
    assert portable.slices("demo") == portable.rules("demo") == []


def gcloud_deletes(tpukit: Tpukit, name: str) -> None:
    """Let gcloud see the one slice, delete it, and see none."""
    needs_gcloud("what gcloud sees of it")
    printed = tpukit.succeeds("emulator", "env").stdout
    variables = dict(re.findall(r"^export (\w+)='?([^'\n]*)'?$", printed, re.MULTILINE))
    zone = variables["CLOUDSDK_COMPUTE_ZONE"]

    def gcloud(*words: str) -> str:
        line = ["gcloud", "compute", "tpus", "tpu-vm", *words, "--zone", zone]
        environment = {**tpukit.environment, **variables}
        return subprocess.run(
            line, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert gcloud("list", "--format", "value(name.basename())").split() == [name]
    gcloud("delete", name, "--quiet")
    assert gcloud("list", "--format", "value(name)").strip() == ""
    assert tpukit.slices(name) == []


def test_a_detached_watch_says_whether_its_command_runs_and_where_it_starts(
    portable: Tpukit, tmp_path: Path
) -> None:
    """In the pushed folder, or in --workdir as `run`; a second watch of the slice is refused."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.sh").write_text("pwd; touch begun; sleep 999\n")
    portable.succeeds("create", "v3-8", "demo")
    watch = ("watch", "demo", "--run-id", "train", "--detach")
    failed = portable(*watch, "--push", str(folder), "--with", "none-of-ours", "--", "true")
    assert failed.returncode == 2, failed.stderr
    assert "ended before its command began" in failed.stderr
    assert "none-of-ours" in failed.stderr
    portable.succeeds("watch", "demo", "--stop")
    portable.succeeds(*watch, "--push", str(folder), "--", "sh", "train.sh")
    (listed,) = portable.document("watch", "--list")["watches"]
    assert (listed["state"], listed["history"][-1]["event"]) == ("watching", "run train started")
    ran = portable.succeeds("run", "demo", "--workdir", "project", "--", "ls; pwd")
    assert "begun" in ran.stdout
    assert "/project" in ran.stdout
    assert portable("run", "demo", "--workdir", "nowhere", "--", "true").returncode == 1
    second = portable("watch", "demo", "--run-id", "other", "--", "true")
    assert second.returncode == 5, second.stderr
    os.kill(listed["process"], signal.SIGKILL)
    eventually(lambda: "not running" in portable.succeeds("watch", "--list").stdout)


def test_up_keep_comes_through_a_loss_at_each_of_its_stages(portable: Tpukit) -> None:
    up = portable.start("up", "v3-8", "victim", "--spot", "--keep", "--verbose")
    assert up.stderr
    told: list[str] = []
    lost = 0
    moments = iter([*STAGES, None])
    moment = next(moments)
    for line in up.stderr:
        told.append(line)
        if moment is None:
            if "victim: ready" in line:
                up.send_signal(signal.SIGINT)
        elif re.search(moment, line) and portable.slices("victim"):
            how = ("--vanish",) if lost % 2 else ()
            portable("emulator", "preempt", "victim", *how)
            lost += 1
            moment = next(moments)
    up.wait(60)
    text = "".join(told)
    assert up.returncode == 130, text
    assert lost == len(STAGES), text
    assert "exists: slice victim" in text
    assert len(portable.slices("victim")) == len(portable.rules("victim")) == 1
    portable.succeeds("delete", "victim", "--yes")
    assert portable.rules("victim") == []


#: What is typed, and the line of narration at which Ctrl-C comes, in an order in which each finds
#: what the ones before it have left: no slice, one that is being made, a READY one, a lost one.
PHASES = (
    ("create v3-8 demo", r"^slice demo:"),
    ("create v3-8 demo", r"CREATING"),
    (
        "create v3-8 demo --zones emulator-local1-a,emulator-local1-b",
        r"using the existing slice|CREATING",
    ),
    ("up v3-8 demo", r"^slice demo:"),
    ("up v3-8 demo", r"READY|already there|firewall"),
    ("up v3-8 demo", r"connect +1 of 1"),
    ("up v3-8 demo", r"worker 0: uv: "),
    ("up v3-8 demo", r"worker 0: venv: |provision +0 changes"),
    ("up v3-8 demo --keep", r"watched until"),
    ("provision demo", r"worker 0: "),
    ("wait demo --for gone", r"READY"),
    ("watch demo --run-id one -- sleep 999", r"run one started"),
    ("watch demo", r"resumed after"),
    ("watch demo", r"preempted"),
    ("watch demo", r"making it again"),
    ("watch demo", r"made again|run one"),
    ("wait demo --for gone --timeout 20m", r"READY|CREATING"),
    ("stop demo", r"STOPPING|READY"),
    ("start demo", r"STARTING|STOP"),
    ("delete demo --yes", r"DELETING|READY|STARTING|STOP"),
)


#: How an interrupt tells of a slice that is there, that may be, or that was not looked for yet.
SAID = "exists: slice demo|demo .*may still appear|slice demo .*was not looked up yet"


def test_ctrl_c_says_at_once_what_exists_and_how_to_delete_it(tmp_path_factory: Factory) -> None:
    tpukit = Tpukit(tmp_path_factory.mktemp("interrupts"), {"TPUKIT_LOCAL": "1"})
    tpukit.succeeds("emulator", "start", "--engine", "portable", "--create-seconds", "4")
    table, seconds, wrong = ["SECONDS  EXIT  PHASE"], [], []
    try:
        for line, moment in PHASES:
            if moment == "preempted":
                tpukit("emulator", "preempt", "demo")
            elif "--run-id" in line:
                tpukit("watch", "demo", "--stop")  # what --keep has begun has no command
            status, took, told = interrupt(tpukit, line.split(), moment)
            seconds.append(took)
            table.append(f"{took:<9.3f}{status:<6}{line}: {moment}")
            said = re.search(SAID, told)
            if status != 130 or (tpukit.slices("demo") and not (said and "delete demo" in told)):
                wrong.append(f"{line} at {moment}:\n{told}")
    finally:
        sys.stdout.write("\n".join(table) + "\n")
        tpukit("emulator", "stop")
    assert not wrong, "\n".join(wrong)
    assert len(seconds) >= 20
    assert sorted(seconds)[len(seconds) // 2] < 0.2, "half of them, also on a machine at work"
    assert max(seconds) < 2.0


def interrupt(tpukit: Tpukit, words: list[str], moment: str) -> tuple[int, float, str]:
    """Press Ctrl-C at a line; return the status, the seconds to the first word, and all words."""
    with tpukit.start(*words) as process:
        assert process.stderr
        told: list[str] = []
        pressed = answered = 0.0
        for line in process.stderr:
            told.append(line)
            if pressed and not answered and line.startswith("error: interrupted"):
                answered = time.monotonic()
            if not pressed and re.search(moment, line):
                pressed = time.monotonic()
                process.send_signal(signal.SIGINT)
    text = "".join(told)
    assert pressed, f"{words}: the moment {moment} never came:\n{text}"
    return process.returncode, (answered or time.monotonic()) - pressed, text
