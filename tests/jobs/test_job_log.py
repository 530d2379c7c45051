"""What a job wrote: kept whole, found again by line, and not for ever."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support.clocks import HandClock, HastyClock
from support.openssh_server import UbuntuServer
from support.processes import eventually
from support.ssh_fixtures import Within

from tpukit.clock import Deadline
from tpukit.errors import TpukitError, TransportFailed
from tpukit.jobs.detached_job import (
    DetachedJob,
    JobLost,
    JobRequest,
    JobResult,
    LogPart,
)
from tpukit.jobs.job_list import JobState, about, list_jobs
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.fan_out import fan_out, values

pytestmark = pytest.mark.process

WORKER = "demo.0"
NAME = f"run.train@{WORKER}"
LINES = "".join(f"line {number}\n" for number in range(1, 100_001)).encode()


@dataclass(frozen=True)
class Jobs:
    """Jobs on one worker, started and followed over as many connections as it takes."""

    connector: Connector
    ubuntu: UbuntuServer
    within: Within

    def connect(self) -> Connection:
        return self.connector.connect(self.ubuntu.target(), self.within(60))

    def start(self, command: str, name: str = NAME, **more: object) -> None:
        request = JobRequest(command, **more)  # type: ignore[arg-type]
        DetachedJob(self.connect, name, self.within(60)).start(request)

    def read(self, **part: object) -> bytes:
        """Return what a follower gets of a part of the log."""
        found: list[bytes] = []
        job = DetachedJob(self.connect, NAME, self.within(120), on_log=found.append)
        job.follow(LogPart(**part))  # type: ignore[arg-type]
        return b"".join(found)

    @property
    def folder(self) -> Path:
        return self.ubuntu.home / ".tpukit/jobs" / NAME

    def runner(self) -> psutil.Process:
        return psutil.Process(int((self.folder / "pid").read_text().split()[0]))


@pytest.fixture
def jobs(connector: Connector, ubuntu: UbuntuServer, within: Within) -> Jobs:
    return Jobs(connector, ubuntu, within)


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=lambda: fan_out([0], lambda _: work()), daemon=True)
    thread.start()
    return thread


@pytest.fixture
def small_disk(ubuntu: UbuntuServer) -> Iterator[Callable[[str], None]]:
    """A disk of a megabyte below the worker's folder; return what makes it larger."""
    if os.geteuid():
        pytest.skip("a full disk is a mount that only root can make: it is NOT checked")
    place = ubuntu.home / ".tpukit"
    place.mkdir()
    mount = ("mount", "-t", "tmpfs")
    subprocess.run([*mount, "-o", "size=1m", "tmpfs", str(place)], check=True)
    ubuntu.own(place)

    def grow(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)

    yield grow
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(ubuntu: UbuntuServer) -> Path:
    """Leave no room on the small disk; return the file that has taken it."""
    filler = ubuntu.home / ".tpukit/filler"
    with contextlib.suppress(OSError), filler.open("wb", 0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def test_a_worker_whose_disk_was_full_before_the_agent_came_can_be_asked(
    jobs: Jobs, small_disk: Callable[[str], None]
) -> None:
    fill(jobs.ubuntu)
    assert list_jobs(jobs.connect(), WORKER, deadline=jobs.within(60)) == []
    with pytest.raises(TpukitError, match="could not keep a job") as caught:
        jobs.start("true")
    assert "No space left on device" in caught.value.reason


def test_a_full_disk_holds_no_command_up_and_what_is_missing_is_counted(
    jobs: Jobs, small_disk: Callable[[str], None]
) -> None:
    """It writes three times what the disk has, and goes on once there is room."""
    waits = "touch wrote; until [ -e go ]; do sleep 0.02; done; echo last; exit 3"
    jobs.start(f"for i in 1 2 3; do seq -f 'line %.0f' 1 100000; done; {waits}")
    jobs.ubuntu.wait_until((jobs.ubuntu.home / "wrote").exists)
    told: list[str] = []
    dropped = jobs.folder / "log.dropped"
    jobs.ubuntu.wait_until(lambda: int(dropped.read_text()) > 2_000_000)
    small_disk("8m")
    (jobs.ubuntu.home / "go").touch()
    found: list[bytes] = []
    result = DetachedJob(
        jobs.connect,
        NAME,
        jobs.within(120),
        on_log=found.append,
        notice=told.append,
    ).follow()
    (state,) = list_jobs(jobs.connect(), WORKER, deadline=jobs.within(60))
    kept = 3 * len(LINES) - state.dropped
    log = b"".join(found)
    assert log[:kept] == (3 * LINES)[:kept]
    notice = f"tpukit: the disk was full, and {state.dropped} bytes of output were dropped\nlast\n"
    assert log[kept:].lstrip(b"\n") == notice.encode()
    assert told == [f"{state.dropped} bytes of its output were dropped: No space left on device"]
    assert result
    assert (result.status, result.tail[-2:]) == (3, ("last", *told))


def test_a_job_on_a_full_disk_ends_with_its_own_status(
    jobs: Jobs, small_disk: Callable[[str], None]
) -> None:
    jobs.start("until [ -e go ]; do sleep 0.02; done; head -c 600000 /dev/zero; exit 4")
    fill(jobs.ubuntu)
    (jobs.ubuntu.home / "go").touch()
    jobs.ubuntu.wait_until((jobs.folder / "status").exists)
    (state,) = list_jobs(jobs.connect(), WORKER, deadline=jobs.within(60))
    assert (state.status, state.dropped > 500_000) == (4, True)


def test_what_the_command_left_behind_is_logged_after_its_end(jobs: Jobs) -> None:
    jobs.start("(until [ -e go ]; do sleep 0.02; done; echo late) & echo early; exit 3")
    assert jobs.read() == b"early\n"
    assert (jobs.folder / "status").read_text().strip() == "3"
    (jobs.ubuntu.home / "go").touch()
    jobs.ubuntu.wait_until(lambda: (jobs.folder / "log").read_bytes() == b"early\nlate\n")


def test_term_to_the_runner_ends_the_command_in_order(jobs: Jobs) -> None:
    jobs.start("trap 'echo saved; exit 5' TERM; touch here; while :; do sleep 0.02; done")
    jobs.ubuntu.wait_until((jobs.ubuntu.home / "here").exists)
    os.kill(jobs.runner().pid, signal.SIGTERM)
    assert jobs.read().endswith(b"saved\n")
    assert (jobs.folder / "status").read_text().strip() == "5"


@pytest.mark.parametrize("whose", ["the command's", "the runner's"])
@pytest.mark.parametrize("asking", ["root", "anyone"])
def test_a_job_that_ends_while_its_worker_goes_down_is_lost(
    jobs: Jobs, whose: str, asking: str
) -> None:
    """Systemd ends all, in whatever order, and a program that saves at TERM ends with 0.

    A stand-in says that the worker goes down: without D-Bus only to root, without sudo to anyone.
    It gets TERM as well: systemd looks for new processes of a group until there are none.
    """
    tools = jobs.ubuntu.home / "tools"
    tools.mkdir()
    for name, script in {
        "sudo": 'shift; asking=root exec "$@"',
        "systemctl": f'[ "${{asking:-anyone}}: $*" = "{asking}: is-system-running" ] && '
        "echo stopping",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\nkill -TERM $$\n{script}\nexit 1\n")
        (tools / name).chmod(0o755)
    jobs.ubuntu.own(tools)
    jobs.ubuntu.path = f"{tools}:{jobs.ubuntu.path}"
    jobs.start("trap 'echo saved; exit 0' TERM; touch here; while :; do sleep 0.02; done")
    jobs.ubuntu.wait_until((jobs.ubuntu.home / "here").exists)
    runner = jobs.runner()
    (command,) = runner.children()
    (command if whose == "the command's" else runner).terminate()
    with pytest.raises(JobLost) as caught:
        jobs.read()
    assert caught.value.details["log_tail"][-1] == "saved"


def followers(jobs: Jobs) -> list[psutil.Process]:
    """Return the Python programs that run there, but for the runner."""
    return [program for program in python_programs(jobs.ubuntu) if program != jobs.runner()]


def python_programs(ubuntu: UbuntuServer) -> list[psutil.Process]:
    found = []
    for process in ubuntu.processes():
        with contextlib.suppress(psutil.Error):
            found += [process] if process.name().startswith("python") else []
    return found


def ended_children(program: psutil.Process) -> str:
    """Return the page faults of children of a process that have ended."""
    return Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[8]


def test_an_idle_follower_starts_no_process_and_ends_when_nobody_listens(jobs: Jobs) -> None:
    jobs.start("echo first; until [ -e go ]; do sleep 0.02; done")
    seen, gone = threading.Event(), threading.Event()
    connection = jobs.connect()
    connections = iter([connection])

    def connect() -> Connection:
        """Let nobody listen until all have seen it."""
        if first := next(connections, None):
            return first
        assert gone.wait(60)
        return jobs.connect()

    job = DetachedJob(connect, NAME, jobs.within(60), on_log=lambda *_: seen.set())
    follower = in_background(job.follow)
    assert seen.wait(60)
    (program,) = followers(jobs)
    asked = len(jobs.ubuntu.commands)
    before = ended_children(program)
    looks = program.num_ctx_switches().voluntary
    eventually(lambda: program.num_ctx_switches().voluntary > looks + 10)
    assert ended_children(program) == before
    assert not program.children()
    assert len(jobs.ubuntu.commands) == asked
    connection.close()
    eventually(lambda: not followers(jobs))
    (jobs.ubuntu.home / "go").touch()
    gone.set()
    follower.join(60)
    assert not follower.is_alive()


def test_a_connection_that_lasted_renews_the_patience_with_its_worker(jobs: Jobs) -> None:
    """A job may be silent for hours: its first lost connection is no reason to give it up.

    While it is silent, its worker says that it is there.
    """
    clock, lost = HandClock(), list[str]()
    limit = Deadline.after(clock, 10_000)
    job = DetachedJob(jobs.connect, NAME, limit, notice=lost.append, patience=8.0)
    jobs.start("until [ -e go ]; do sleep 0.02; done; exit 3")
    results: list[JobResult | None] = []
    follower = in_background(lambda: results.append(job.follow()))
    eventually(lambda: len(followers(jobs)) == 1)
    (program,) = followers(jobs)
    for _ in range(2):
        looks = program.num_ctx_switches().voluntary
        eventually(lambda looks=looks: program.num_ctx_switches().voluntary > looks + 25)
        clock.advance(5.0)
    jobs.ubuntu.cut()
    (jobs.ubuntu.home / "go").touch()
    follower.join(60)
    assert [result and result.status for result in results] == [3]
    assert len(lost) == 1


def test_every_byte_comes_once_over_lost_connections(jobs: Jobs) -> None:
    """Whatever it is: nothing of it is text. Each loss is told."""
    jobs.start(
        "for i in 1 2 3 4; do head -c 300000 /dev/urandom | tee -a sent; "
        "until [ -e seen-$i ]; do sleep 0.02; done; done"
    )
    found = bytearray()
    told: list[str] = []

    def take(data: bytes) -> None:
        before = len(found) // 300_000
        found.extend(data)
        if len(found) // 300_000 > before:
            jobs.ubuntu.cut()
            (jobs.ubuntu.home / f"seen-{before + 1}").touch()

    limit = Deadline.after(HastyClock(), 120)
    job = DetachedJob(jobs.connect, NAME, limit, on_log=take, notice=told.append)
    ended = job.follow()
    assert ended
    assert ended.status == 0
    assert bytes(found) == (jobs.ubuntu.home / "sent").read_bytes()
    assert len(told) >= 3
    assert all(line.startswith("lost, connecting again") for line in told)


def test_a_worker_that_brings_nothing_is_given_up(jobs: Jobs) -> None:
    """It lets in who comes, and breaks each connection as soon as it is asked for something."""
    jobs.start("until [ -e go ]; do sleep 0.02; done")
    told: list[str] = []

    def broken() -> Connection:
        connection = jobs.connect()
        jobs.ubuntu.cut()
        return connection

    job = DetachedJob(broken, NAME, jobs.within(120), notice=told.append, patience=1.0)
    with pytest.raises(TransportFailed):
        job.follow()
    assert told
    (jobs.ubuntu.home / "go").touch()


@pytest.mark.parametrize("size", [1 << 16, 300_000])
def test_a_log_keeps_its_newest_part_in_whole_lines(jobs: Jobs, size: int) -> None:
    jobs.start("seq -f 'line %.0f' 1 100000", limit=size)
    jobs.ubuntu.wait_until((jobs.folder / "status").exists)  # who reads meanwhile may miss a part
    kept = jobs.read()
    assert LINES.endswith(b"\n" + kept)
    assert kept.startswith(b"line ")
    on_disk = sum(path.stat().st_size for path in jobs.folder.glob("log.[0-9]*"))
    assert size // 2 - (1 << 16) < len(kept) <= on_disk <= size + (1 << 16)
    assert jobs.read(tail=2) == b"line 99999\nline 100000\n"
    assert jobs.read(tail=10**6) == kept


def test_who_follows_a_log_that_is_dropped_before_is_told_and_sees_no_line_twice(
    jobs: Jobs,
) -> None:
    jobs.start(
        "echo line 1; until [ -e go ]; do sleep 0.02; done; seq -f 'line %.0f' 2 100000; touch all",
        limit=1 << 16,
    )
    text = bytearray()
    told: list[str] = []

    def take(data: bytes) -> None:
        if not text:
            followers(jobs)[0].suspend()
            (jobs.ubuntu.home / "go").touch()
            jobs.ubuntu.wait_until((jobs.folder / "status").exists)
            followers(jobs)[0].resume()
        text.extend(data)

    DetachedJob(jobs.connect, NAME, jobs.within(120), on_log=take, notice=told.append).follow()
    numbers = [int(line.split()[1]) for line in text.splitlines()]
    assert numbers[0] == 1
    assert numbers == sorted(set(numbers))
    assert (numbers[1] > 2, numbers[-1]) == (True, 100_000)
    assert [line.partition(" ")[2] for line in told] == ["bytes of its log were dropped before"]


def test_parts_of_a_log(jobs: Jobs) -> None:
    jobs.start("printf 'one\\ntwo\\nthree\\nfour\\nfive'")
    whole = b"one\ntwo\nthree\nfour\nfive"
    assert jobs.read() == jobs.read(tail=5) == jobs.read(tail=100) == whole
    assert jobs.read(tail=1) == b"five"
    assert jobs.read(tail=3) == b"three\nfour\nfive"
    assert jobs.read(tail=0) == b""


def test_secrets_are_in_no_file_and_the_others_can_be_shown(jobs: Jobs) -> None:
    variables = {
        "WANDB_API_KEY": "hush\nhush",
        "db_password": "hush",
        "PROXY": "http://ada:hush@hush@proxy:80",
        **dict.fromkeys(("HF_PAT", "MYSQL_PWD", "AWS_CREDS", "SLACK_WEBHOOK_URL"), "hush"),
        "PATTERN": "a*",
        "STEPS": "it's 7",
    }
    lines = "".join(f"export {name}={json.dumps(value)}\n" for name, value in variables.items())
    command = 'until [ -e go ]; do sleep 0.02; done; echo "$WANDB_API_KEY $db_password $STEPS"'
    jobs.start(command, environment=lines, about=about(command, lines))
    files = [path for path in (jobs.ubuntu.home / ".tpukit").rglob("*") if path.is_file()]
    assert not [path for path in files if b"hush" in path.read_bytes()]
    assert all(path.stat().st_mode & 0o077 == 0 for path in [jobs.folder, *files])
    (state,) = list_jobs(jobs.connect(), WORKER, "train", deadline=jobs.within(60))
    masked = {"WANDB_API_KEY": "****", "db_password": "****", "PROXY": "http://****@proxy:80"}
    masked |= dict.fromkeys(("HF_PAT", "MYSQL_PWD", "AWS_CREDS", "SLACK_WEBHOOK_URL"), "****")
    assert state.environment == {**masked, "PATTERN": "a*", "STEPS": "it's 7"}
    assert state.command == command
    (jobs.ubuntu.home / "go").touch()
    assert jobs.read() == b"hush\nhush hush it's 7\n"


def test_what_is_left_of_ended_runs_is_removed_and_counted(jobs: Jobs) -> None:
    """Never of one that runs, nor of one that left something running, or is another worker's.

    Nor is a step of provisioning a run.
    """
    busy, stray, old, new = (f"run.{name}@{WORKER}" for name in ("busy", "stray", "old", "new"))
    other = "run.other@demo.1"
    jobs.start("exec sleep 1000", busy)
    jobs.start("exec sleep 1000 & exit 0", stray)
    jobs.start("true", "step")
    jobs.start("head -c 100000 /dev/zero", old)
    for name in (new, other):
        jobs.start("true", name)
    folder = jobs.folder.parent
    ended = [folder / name / "status" for name in (stray, "step", old, new, other)]
    jobs.ubuntu.wait_until(lambda: all(path.exists() for path in ended))
    eventually(lambda: len(python_programs(jobs.ubuntu)) == 2)
    for path in (folder / old).iterdir():
        os.utime(path, (0, time.time() - 7200))
    listed = list_jobs(jobs.connect(), WORKER, ended_before=3600.0, deadline=jobs.within(60))
    (gone,) = [job for job in listed if job.freed is not None]
    assert (gone.run, gone.state) == ("old", "finished")
    assert (gone.freed or 0) >= 100_000
    list_jobs(jobs.connect(), WORKER, ended_before=0.0, deadline=jobs.within(60))
    assert sorted(path.name for path in folder.iterdir()) == [busy, other, stray, "step"]


#: Asks for the removal of a job that lives, while a file of it gets ever other names.
_RENAMED = """
import itertools, os, sys, threading
from tpukit.agent.job_verbs import removed
from tpukit.agent.live_processes import identity
from tpukit.agent.run_records import RunRecord, save
folder = sys.argv[1]
save(f"{os.getpid()} {identity(os.getpid())}", folder, "pid")
save("", folder, "log.0")

def rename():
    for number in itertools.count():
        os.rename(f"{folder}/log.{number}", f"{folder}/log.{number + 1}")

threading.Thread(target=rename, daemon=True).start()
assert not any(removed(RunRecord(folder), 0.0) for _ in range(5000))
"""


@pytest.mark.slow
def test_the_files_of_a_run_that_goes_on_are_left_alone(tmp_path: Path) -> None:
    """They come and go: to look at them would fail the removal of all the others."""
    line = [sys.executable, "-c", _RENAMED, str(tmp_path)]
    subprocess.run(line, check=True)


def test_several_who_prune_at_once_do_not_disturb_each_other(jobs: Jobs) -> None:
    """Each run is removed by one of them."""
    folder = f".tpukit/jobs/run.$n@{WORKER}"
    made = f"mkdir -p {folder}; echo 0 >{folder}/status; touch {folder}/command"
    line = f"for n in $(seq 60); do {made}; done"
    assert jobs.connect().run(line, deadline=jobs.within(60)).ok

    def prune(connection: Connection) -> list[JobState]:
        return list_jobs(connection, WORKER, ended_before=0.0, deadline=jobs.within(60))

    listed = values(fan_out([jobs.connect() for _ in range(4)], prune))
    assert sorted(int(job.run) for jobs_ in listed for job in jobs_) == [*range(1, 61)]


def test_a_worker_without_python_says_so(jobs: Jobs) -> None:
    tools = jobs.ubuntu.home / "tools"
    tools.mkdir()
    for name in ("sh", "bash", "cat", "find", "mkdir", "mv", "rm", "wc"):
        (tools / name).symlink_to(shutil.which(name) or "")
    jobs.ubuntu.path = str(tools)
    with pytest.raises(TpukitError, match="has no python3") as failed:
        jobs.start("true")
    assert not isinstance(failed.value, TransportFailed)


def test_a_detached_command_has_the_user_s_own_umask(jobs: Jobs) -> None:
    jobs.start("umask 022; umask")
    jobs.read()
    jobs.start("umask; : >made", "other")
    jobs.ubuntu.wait_until((jobs.ubuntu.home / "made").exists)
    log = jobs.ubuntu.home / ".tpukit/jobs/other/log"
    jobs.ubuntu.wait_until(lambda: bool(log.read_text()))
    assert log.read_text() != "0077\n"
