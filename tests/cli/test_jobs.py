"""Detached runs against the real emulator, from `run --detach` to `kill`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import eventually

from cli.conftest import Local

pytestmark = pytest.mark.process

#: Makes a device of the worker's stand-in, and leaves an orphan that holds it: its parent is gone,
#: and so are its session and its environment. The file `held` says that it has it.
ORPHAN = (
    "mkdir -p ~/.tpukit/emulated-devices; touch ~/.tpukit/emulated-devices/accel0; "
    "touch $TMPDIR/libtpu_lockfile; "
    '(setsid env -i sh -c "exec 3<$HOME/.tpukit/emulated-devices/accel0; '
    'touch $HOME/held; exec sleep 1000" &)'
)


@pytest.fixture(scope="module")
def team(local: Local) -> Iterator[str]:
    """A slice of four workers whose rule admits us."""
    with local.slice("team", "v3-32") as name:
        yield name


def detach(local: Local, name: str, command: str, *words: str) -> str:
    done = local.run("run", name, "--detach", *words, "--", command)
    assert done.status == 0, done.err
    assert "4 of 4 workers started it" in done.err
    return done.out.strip()


def stand(local: Local, name: str, run: str) -> list[tuple[int, str, int | None]]:
    jobs = json.loads(local.run("jobs", name, run, "--json").out)["jobs"]
    return [(job["worker"], job["state"], job["status"]) for job in jobs]


def test_a_detached_run_is_followed_to_its_end_and_its_status_is_the_highest(
    local: Local, team: str
) -> None:
    run = detach(local, team, "for i in 1 2 3; do echo line $i; done; exit $TPUKIT_WORKER")
    done = local.run("attach", team, run)
    assert done.status == 3
    lines = sorted(f"[{worker}] line {number}" for worker in range(4) for number in (1, 2, 3))
    assert sorted(done.out.splitlines()) == lines
    assert stand(local, team, run) == [(worker, "finished", worker) for worker in range(4)]
    assert local.run("logs", team, run, "--worker", "2").out == "line 1\nline 2\nline 3\n"
    assert sorted(local.run("logs", team, "-f").out.splitlines()) == lines


def test_the_same_run_id_is_refused_with_exit_5(local: Local, team: str) -> None:
    assert detach(local, team, "true", "--run-id", "once") == "once"
    local.run("run", team, "--detach", "--run-id", "once", "--", "true").says(5)


def test_without_a_name_the_runs_of_all_own_slices_are_listed(local: Local, team: str) -> None:
    run = detach(local, team, "true")
    listed = json.loads(local.run("jobs", "--json").out)["jobs"]
    assert (team, run) in {(job["slice"], job["run"]) for job in listed}
    local.run("jobs", "--prune").says(2)


@pytest.mark.journey
def test_kill_frees_a_device_that_an_orphan_of_nobody_holds(local: Local, team: str) -> None:
    """On emulated workers files stand in for the devices."""
    run = detach(local, team, f"{ORPHAN}; sleep 1000")
    until_held = "until [ -e held ]; do sleep 0.1; done"
    assert local.run("run", team, "--timeout", "120s", "--", until_held).status == 0
    done = local.run("kill", team, run, "--json")
    assert done.status == 0, done.err
    ended = json.loads(done.out)["ended"]
    assert [len(each["spared"]) for each in ended] == [1] * 4
    assert f"tpukit --local kill {team} --all-holders" in local.run("kill", team, run).err
    done = local.run("kill", team, "--all-holders", "--json")
    assert done.status == 0, done.err
    ended = json.loads(done.out)["ended"]
    assert [each["holders_ended"] for each in ended] == [1] * 4
    assert [each["lock_removed"] for each in ended] == [True] * 4
    assert stand(local, team, run) == [(worker, "finished", 143) for worker in range(4)]


SAVES = "trap 'exit 0' TERM; touch ready; while :; do sleep 0.02; done"


@pytest.mark.full_size
def test_after_a_worker_s_restart_its_run_is_lost(local: Local) -> None:
    """A slice with one worker: no other can be stopped. Its program saves, and ends with 0."""
    assert local.run("create", "v3-8", "lone").status == 0
    assert local.run("firewall", "apply", "lone").status == 0
    started = local.run("run", "lone", "--detach", "--run-id", "long", "--", SAVES)
    assert started.status == 0
    local.run("run", "lone", "--", "until [ -e ready ]; do sleep 0.02; done")
    assert local.run("stop", "lone").status == 0
    assert local.run("start", "lone").status == 0
    assert stand(local, "lone", "long") == [(0, "lost", None)]
    done = local.run("attach", "lone", "long")
    assert done.status == 1
    assert "job run.long was lost" in done.err
    assert local.run("delete", "lone", "--yes").status == 0


@pytest.mark.journey
def test_a_full_disk_is_named_and_leaves_nothing_running(local: Local, team: str) -> None:
    """Worker 1 cannot keep the job; those that started before it are ended."""
    if os.getuid():
        pytest.skip("a full disk is a mount that only root can make: it is NOT checked")
    assert local.run("emulator", "worker", team, "1", "--fault", "disk-full").status == 0
    try:
        done = local.run("run", team, "--detach", "--run-id", "full", "--", "sleep 1000")
    finally:
        assert local.run("emulator", "worker", team, "1", "--clear").status == 0
    assert done.status == 1
    assert f"error: {team} worker 1 could not keep a job" in done.err
    assert "No space left on device" in done.err
    assert f"fix: tpukit --local ssh {team} --worker 1 -- 'df -h . && du" in done.err
    ended = [(worker, "finished", 143) for worker in (0, 2, 3)]
    assert stand(local, team, "full") == ended


def test_what_is_not_there_is_not_found(local: Local, team: str) -> None:
    local.run("jobs", team, "no-such-run").says(3)
    local.run("logs", team, "no-such-run").says(3)
    local.run("attach", team, "no-such-run").says(3)
    local.run("kill", team, "no-such-run").says(3)


def test_an_attached_run_is_listed_and_kill_ends_it(local: Local, team: str) -> None:
    """Also if its client was killed: then `jobs` alone knows its id."""
    with local.start("run", team, "--", "touch attached; exec sleep 1000") as process:
        until = "until [ -e attached ]; do sleep 0.1; done; rm attached"
        assert local.run("run", team, "--", until).status == 0
        (run,) = attached(local, team, "attached")
        local.run("logs", team, run).says(3)
        process.kill()
    eventually(lambda: attached(local, team, "attached, client gone") == {run})
    killed = local.run("kill", team, run)
    assert killed.status == 0, killed.err
    assert f"some processes on {team} worker 3 may still run" in killed.err
    assert not attached(local, team, "attached, client gone")


def test_a_daemon_that_an_ended_run_left_behind_is_no_attached_run(local: Local, team: str) -> None:
    left = local.run("run", team, "--", "setsid sleep 1000 >/dev/null 2>&1 &")
    assert left.status == 0
    (run,) = attached(local, team, "attached, ended")
    assert local.run("kill", team, run).status == 0
    assert not attached(local, team, "attached, ended")


def attached(local: Local, name: str, state: str) -> set[str]:
    """Return the runs that stand so on all four workers."""
    jobs = json.loads(local.run("jobs", name, "--json").out)["jobs"]
    runs = [job["run"] for job in jobs if job["state"] == state]
    return {run for run in runs if runs.count(run) == 4}


#: In place of the agent: as where a disk hangs.
SILENT = 'echo "import time; time.sleep(1000)" | tee ~/.tpukit/agent/*/__main__.py'


@pytest.mark.slow
def test_a_worker_that_answers_nothing_holds_no_command_up(local: Local, team: str) -> None:
    run = detach(local, team, "echo out")
    assert local.run("attach", team, run).status == 0
    assert local.run("run", team, "--worker", "1", "--", SILENT).status == 0
    try:
        for words in (("jobs", team), ("logs", team, run), ("kill", team, run)):
            began = time.monotonic()
            done = local.run(*words, "--timeout", "4s")
            assert time.monotonic() - began < 25, words
            assert done.status != 0
            assert f"{team} worker 1" in done.err
            shown = "out" if words[0] == "logs" else team
            assert shown in done.out, done.err
    finally:
        assert local.run("run", team, "--worker", "1", "--", "rm -r ~/.tpukit/agent").status == 0


def test_kill_wants_to_know_what(local: Local, team: str) -> None:
    local.run("kill", team).says(2)
    local.run("kill", team, "some-run", "--all").says(2)


def test_logs_show_a_part_of_what_each_worker_wrote(local: Local, team: str) -> None:
    run = detach(local, team, "for i in 1 2 3; do echo line $i; done; printf 'no end'")
    assert local.run("attach", team, run).status == 0
    done = local.run("logs", team, run, "--tail", "1")
    assert sorted(done.out.splitlines()) == [f"[{worker}] no end" for worker in range(4)]
    done = local.run("logs", team, run, "--tail", "2", "--worker", "1")
    assert done.out == "line 3\nno end"
    done = local.run("logs", team, run, "--json-lines", "--tail", "1")
    assert json.loads(done.out.splitlines()[0])["line"] == "no end"
    local.run("logs", team, run, "--tail", "-1").says(2)


def test_a_long_line_comes_whole_as_json_lines(local: Local, team: str) -> None:
    """Also if it is no text."""
    run = detach(local, team, "head -c 200000 /dev/zero | tr '\\0' '\\377'; echo; echo last")
    assert local.run("attach", team, run).status == 0
    done = local.run("logs", team, run, "--json-lines", "--worker", "0-1")
    lines = [json.loads(line) for line in done.out.splitlines()]
    for worker in range(2):
        text = "".join(line["line"] for line in lines if line["worker"] == worker)
        assert text == "\ufffd" * 200_000 + "last"


def test_ctrl_c_names_the_run_that_goes_on(local: Local, team: str) -> None:
    """The one that is followed: nobody is told to end every run."""
    run = detach(local, team, "echo begun; sleep 1000")
    for verb in (("attach",), ("logs", "-f")):
        with local.start(*verb, team) as process:
            assert process.stdout
            assert "begun" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=60)
        assert process.returncode == 130
        assert told.splitlines()[-5:] == [
            f"run {run} goes on",
            f"next: tpukit --local attach {team} {run}",
            "note: follows it again",
            f"next: tpukit --local kill {team} {run}",
            "note: ends it",
        ]
    assert local.run("kill", team, run).status == 0


def test_one_worker_s_log_is_passed_on_byte_for_byte(
    local: Local, team: str, tmp_path: Path
) -> None:
    """As `run` does: what is not text, carriage returns, no line end."""
    run = detach(local, team, r"printf '\377\000a\r\033[1mb'")
    assert local.run("attach", team, run).status == 0
    words = local.words("logs", team, run, "--worker", "0")
    done = subprocess.run(words, env=local.environment, capture_output=True, check=True)
    assert done.stdout == b"\xff\x00a\r\x1b[1mb"
    folder = tmp_path / "logs"
    local.run("logs", team, run, "--output-directory", str(folder))
    assert (folder / f"{team}-3.stdout").read_bytes() == b"\xff\x00a\r\x1b[1mb"


def test_a_run_is_a_row_and_one_run_a_row_a_worker(local: Local, team: str) -> None:
    run = detach(
        local, team, "exit $((TPUKIT_WORKER / 3))", "--env", "A_TOKEN=hush", "--env", "N=7"
    )
    local.run("attach", team, run)
    rows = [line.split("\t") for line in local.run("jobs", team).out.splitlines()]
    (row,) = [row for row in rows if row[0] == run]
    assert (row[1], row[2]) == (team, "3/4 exited 0, 1/4 exited 1")
    rows = [line.split("\t") for line in local.run("jobs", team, run).out.splitlines()]
    assert [row[2:4] for row in rows if row[0] == run] == [
        [str(worker), f"exited {worker // 3}"] for worker in range(4)
    ]
    shown = json.loads(local.run("jobs", team, run, "--environment", "--json").out)["environments"]
    assert len(shown) == 4
    assert shown[2]["environment"] | {"A_TOKEN": "****", "N": "7"} == shown[2]["environment"]
    assert shown[2]["command"] == "exit $((TPUKIT_WORKER / 3))"
    assert "hush" not in local.run("jobs", team, run, "--environment").out
    local.run("jobs", team, "--environment").says(2)


def test_pruning_takes_what_has_ended(local: Local, team: str) -> None:
    ended = detach(local, team, "seq 1 10000")
    assert local.run("attach", team, ended).status == 0
    going = detach(local, team, "exec sleep 1000")
    assert local.run("jobs", team, ended, "--prune", "--older-than", "1h").out == ""
    pruned = json.loads(local.run("jobs", team, "--prune", "--json").out)["pruned"]
    freed = [row["bytes"] for row in pruned if row["run"] == ended]
    assert len(freed) == 4
    assert min(freed) >= 48_894
    runs = {job["run"] for job in json.loads(local.run("jobs", team, "--json").out)["jobs"]}
    assert runs == {going}
    local.run("jobs", team, "--older-than", "1h").says(2)
    for words in ((), ("--prune",), ("--environment",)):
        nowhere = local.run("jobs", team, "nowhere", *words).says(3)
        assert "error: there is no run nowhere" in nowhere.err
    assert local.run("kill", team, going).status == 0
