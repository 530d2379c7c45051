"""Detached jobs: started once, followed over any number of connections."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from support.agent_program import agent_words, ask_agent
from support.clocks import HandClock, HastyClock
from support.processes import eventually
from support.ssh_fixtures import OURS, Within, ubuntu_or_ours
from support.ssh_server import Server

from tpukit.agent.main import INCOMPLETE
from tpukit.clock import Deadline
from tpukit.errors import BadInput, DeadlinePassed, NameTaken, TpukitError, TransportFailed
from tpukit.jobs.detached_job import DetachedJob, JobLost, JobRequest, JobResult
from tpukit.jobs.job_list import forget_job
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.fan_out import fan_out

pytestmark = pytest.mark.process

Run = Callable[..., JobResult]


server = pytest.fixture(ubuntu_or_ours)


@pytest.fixture
def connect(connector: Connector, server: Server, within: Within) -> Callable[[], Connection]:
    return lambda: connector.connect(server.target(), within(60))


@pytest.fixture
def run(connect: Callable[[], Connection], within: Within) -> Run:
    def run(job: str, command: str, on_line: Callable[[str], None] | None = None) -> JobResult:
        return DetachedJob(connect, job, within(300), on_line).run(JobRequest(command))

    return run


def folder(server: Server, job: str) -> Path:
    return server.home / ".tpukit" / "jobs" / job


def instead_of_python(server: Server, line: str) -> None:
    """Have a shell line run there where python3 is asked for."""
    tools = server.home / "tools"
    tools.mkdir()
    (tools / "python3").write_text(f"#!/bin/sh\n{line}\n")
    (tools / "python3").chmod(0o755)
    server.path = f"{tools}:{server.path}"


def count(server: Server) -> int:
    return len((server.home / "count").read_text().splitlines())


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=lambda: fan_out([0], lambda _: work()), daemon=True)
    thread.start()
    return thread


def test_a_job_runs_and_its_end_is_told(run: Run) -> None:
    lines: list[str] = []
    result = run("steps", "echo one; echo two >&2; printf three; exit 4", on_line=lines.append)
    assert lines == ["one", "two", "three"]
    assert result == JobResult(4, ("one", "two", "three"), "~/.tpukit/jobs/steps/log")


def test_its_files_are_private_and_nothing_else_is_left(run: Run, server: Server) -> None:
    run("steps", "true")
    jobs = folder(server, "steps").parent
    assert [path.name for path in jobs.iterdir()] == ["steps"]
    assert sorted(path.name for path in folder(server, "steps").iterdir()) == [
        "command", "log", "log.0", "log.dropped", "pid", "status",
    ]  # fmt: skip
    assert jobs.stat().st_mode & 0o077 == 0


def test_a_job_runs_in_the_home_folder_with_the_commands_own_words(
    run: Run, server: Server
) -> None:
    command = "pwd\nprintf '%s\\n' \"it's  \\$here\" 'äöü'\ncat; echo end of input"
    result = run("words", command)
    assert result.tail == (str(server.home), "it's  $here", "äöü", "end of input")


def test_a_path_of_the_user_s_own_is_the_command_s_alone(
    connect: Callable[[], Connection], within: Within
) -> None:
    job = DetachedJob(connect, "path", within(60))
    assert job.run(JobRequest("echo $PATH", "export PATH=/nowhere\n")).tail == ("/nowhere",)


def test_a_finished_job_is_not_run_again(run: Run, server: Server) -> None:
    command = "echo once; echo x >>count; exit 3"
    first, second = run("once", command), run("once", command)
    assert first.status == 3
    assert (second.status, second.tail) == (3, ("once",))
    assert count(server) == 1


def test_a_running_job_is_found_again_and_followed_from_its_first_line(
    connect: Callable[[], Connection], run: Run, server: Server
) -> None:
    """The first call's deadline passes at the first line that it sees."""
    clock = HandClock()
    command = "echo x >>count; echo first; until [ -e go ]; do sleep 0.02; done; echo last"
    limit = Deadline.after(clock, 300)
    with pytest.raises(DeadlinePassed, match="job long did not end in time") as passed:
        DetachedJob(connect, "long", limit, lambda _: clock.advance(300)).run(JobRequest(command))
    assert passed.value.exists == ("job long on the worker, log ~/.tpukit/jobs/long/log",)
    (server.home / "go").touch()
    result = run("long", command)
    assert result.tail == ("first", "last")
    assert count(server) == 1


@OURS
def test_two_thousand_lines_over_cut_connections_come_once_each(
    connect: Callable[[], Connection], server: Server
) -> None:
    """The start's answer is cut off half-way, and every fourth of the job's hundreds of lines.

    The job waits after each hundred lines until they were seen.
    """
    server.loses = lambda number: number == 1
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        (server.home / line.replace("line ", "seen-")).touch()
        if len(lines) % 400 == 150:
            server.cut()

    command = (
        "echo x >>count; i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); echo line $i; "
        "[ $((i % 100)) != 0 ] || until [ -e seen-$i ]; do sleep 0.01; done; done; exit 6"
    )
    job = DetachedJob(connect, "lines", Deadline.after(HastyClock(), 300), note)
    result = job.run(JobRequest(command))
    assert lines == [f"line {number}" for number in range(1, 2001)]
    assert result.status == 6
    assert count(server) == 1
    assert len(server.ciphers) > 5, "connections were cut"


def test_a_log_of_many_pieces_arrives_whole(run: Run) -> None:
    lines: list[str] = []
    result = run("pieces", "seq 1 200000", on_line=lines.append)
    assert lines == [str(number) for number in range(1, 200001)]
    assert result.tail == tuple(lines[-50:])


def test_of_two_starters_at_once_one_starts(run: Run, server: Server) -> None:
    together = threading.Barrier(6)

    def start(_: int) -> JobResult:
        together.wait(60)
        return run("race", "echo x >>count; sleep 0.3; echo out; exit 2")

    outcomes = [outcome.value for outcome in fan_out(range(6), start)]
    assert [(outcome.status, outcome.tail) for outcome in outcomes if outcome] == [
        (2, ("out",))
    ] * 6
    assert count(server) == 1


def test_the_same_name_with_another_command_is_refused(run: Run, server: Server) -> None:
    run("name", "echo x >>count")
    with pytest.raises(NameTaken, match="another command"):
        run("name", "echo x >>count; true")
    assert count(server) == 1


def test_a_name_that_is_no_folder_name_is_refused(run: Run, server: Server) -> None:
    for job in ["", "..", "a/b", "A", "-x", "a b", "x" * 201, "ä"]:
        with pytest.raises(BadInput):
            run(job, "true")
        assert server.commands == []


@OURS
def test_a_command_that_did_not_arrive_whole_is_not_run(
    connect: Callable[[], Connection], run: Run, server: Server, within: Within
) -> None:
    """The connection is cut while the command is on its way; the next one brings it whole."""
    cuts = [server.cut]
    server.on_command = lambda: cuts.pop()() if cuts else None
    result = run("whole", "echo x >>count\n" + "# padding\n" * 500_000)
    assert result.status == 0
    assert count(server) == 1


def test_a_request_that_was_cut_short_anywhere_starts_nothing(tmp_path: Path) -> None:
    request = {"job": "cut", **asdict(JobRequest("true"))}
    words, given = agent_words(tmp_path, "start_job"), json.dumps(request).encode() + b"\n"
    for size in (0, 1, len(given) // 2, len(given) - 1):
        done = subprocess.run(words, input=given[:size], check=False)
        assert done.returncode == INCOMPLETE
    assert not (tmp_path / ".tpukit/jobs").exists()


def test_a_job_whose_process_was_killed_is_lost_and_not_started_again(
    run: Run, server: Server
) -> None:
    command = "echo $$ >>count; echo started; exec sleep 1000"
    follower = in_background(lambda: run("killed", command))
    log = folder(server, "killed") / "log"
    server.wait_until(lambda: log.exists() and log.read_text())
    os.kill(int((folder(server, "killed") / "pid").read_text().split()[0]), signal.SIGKILL)
    follower.join(60)
    os.kill(int((server.home / "count").read_text()), signal.SIGKILL)
    assert not follower.is_alive()
    with pytest.raises(JobLost) as lost:
        run("killed", command)
    assert lost.value.details["log_tail"] == ["started"]
    assert lost.value.exit_code == 1
    assert count(server) == 1


def test_a_job_that_never_says_who_it_is_is_lost(
    connect: Callable[[], Connection], server: Server, within: Within
) -> None:
    folder(server, "stuck").mkdir(parents=True)
    server.own(server.home / ".tpukit")
    with pytest.raises(JobLost):
        DetachedJob(connect, "stuck", within(60)).follow()


#: Runs the agent, which is killed where it would call a function of os.
_CUT_OFF = """
import os, runpy, sys
name = sys.argv.pop(1)
sys.argv.pop(0)
setattr(os, name, lambda *_: os.kill(os.getpid(), 9))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("place", ["mkdir", "link", "fork", "setsid"])
def test_a_start_that_is_cut_off_has_started_nothing(tmp_path: Path, place: str) -> None:
    """Wherever: what it has left is no job, and the name is the next one's."""
    request = {"job": "cut", **asdict(JobRequest("exit 5"))}
    (tmp_path / ".tpukit/jobs").mkdir(parents=True)
    python, isolated, bare, *words = agent_words(tmp_path, "start_job")
    line = [python, isolated, bare, "-c", _CUT_OFF, place, *words]
    given = json.dumps(request).encode() + b"\n"
    assert subprocess.run(line, input=given, check=False).returncode
    assert not (tmp_path / ".tpukit/jobs/cut").exists()
    done = ask_agent(tmp_path, "start_job", request)
    assert done.stdout == b'\ntpukit-agent {"state": "started"}\n'
    eventually((tmp_path / ".tpukit/jobs/cut/status").exists)
    assert [path.name for path in (tmp_path / ".tpukit/jobs").iterdir()] == ["cut"]


def test_a_job_goes_on_when_the_agent_is_gone(
    connect: Callable[[], Connection], server: Server, within: Within
) -> None:
    """An update of tpukit brings another one, and removes old ones."""
    job = DetachedJob(connect, "updated", within(60))
    wait = "until [ -e go ]; do sleep 0.02; done"
    job.start(JobRequest(f"{wait}; echo out; exit 3"))
    shutil.rmtree(server.home / ".tpukit/agent")
    (server.home / "go").touch()
    result = job.follow()
    assert result
    assert (result.status, result.tail) == (3, ("out",))


def test_of_several_after_a_start_that_was_cut_off_one_starts(run: Run, server: Server) -> None:
    (folder(server, ".new") / "log").mkdir(parents=True)
    server.own(server.home / ".tpukit")
    together = threading.Barrier(6)

    def start(_: int) -> JobResult:
        together.wait(60)
        return run("stuck", "echo x >>count; exit 5")

    assert [each.value and each.value.status for each in fan_out(range(6), start)] == [5] * 6
    assert count(server) == 1


def waits_for_a_start(server: Server, work: Callable[[], object]) -> None:
    """Hold what a start holds until this waits for it, then let it do its work."""
    jobs = folder(server, "any").parent
    jobs.mkdir(parents=True, exist_ok=True)
    server.own(server.home / ".tpukit")
    held = os.open(jobs, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    thread = in_background(work)
    waiting = re.compile(rf"-> FLOCK .*:{jobs.stat().st_ino} ")
    server.wait_until(lambda: bool(waiting.search(Path("/proc/locks").read_text())))
    os.close(held)
    thread.join(60)
    assert not thread.is_alive()


def test_who_starts_waits_for_others_that_start(run: Run, server: Server) -> None:
    """It could remove what another has just begun."""
    waits_for_a_start(server, lambda: run("waiting", "echo x >>count"))
    assert count(server) == 1


def test_who_removes_waits_for_others_that_start(
    connect: Callable[[], Connection], server: Server, within: Within
) -> None:
    folder(server, "old").mkdir(parents=True)
    waits_for_a_start(server, lambda: forget_job(connect(), "old", deadline=within(60)))
    assert not folder(server, "old").exists()


def test_a_recycled_process_id_is_not_taken_for_the_job(run: Run, server: Server) -> None:
    """After a restart the id may be another process's: here it is this test's own."""
    run("old", "true")
    (folder(server, "old") / "status").unlink()
    (folder(server, "old") / "pid").write_text(f"{os.getpid()} another-boot 12345\n")
    with pytest.raises(JobLost, match="job old was lost"):
        run("old", "true")


def test_a_lost_job_can_be_forgotten_and_started_anew(
    connect: Callable[[], Connection], run: Run, server: Server, within: Within
) -> None:
    run("again", "echo x >>count")
    (folder(server, "again") / "status").unlink()
    forget_job(connect(), "again", deadline=within(60))
    assert not folder(server, "again").exists()
    run("again", "echo x >>count")
    assert count(server) == 2


def test_a_running_job_is_not_forgotten(
    connect: Callable[[], Connection], run: Run, server: Server, within: Within
) -> None:
    command = "touch here; until [ -e go ]; do sleep 0.02; done"
    follower = in_background(lambda: run("busy", command))
    server.wait_until((server.home / "here").exists)
    with pytest.raises(NameTaken, match="job busy is still running"):
        forget_job(connect(), "busy", deadline=within(60))
    (server.home / "go").touch()
    follower.join(60)
    forget_job(connect(), "busy", deadline=within(60))
    forget_job(connect(), "busy", deadline=within(60))
    assert not folder(server, "busy").exists()


def test_a_job_whose_folder_is_removed_while_it_runs_is_lost(run: Run, server: Server) -> None:
    def remove(line: str) -> None:
        shutil.rmtree(folder(server, "gone"))

    with pytest.raises(JobLost) as lost:
        run("gone", "echo out; while [ -e .tpukit/jobs/gone ]; do sleep 0.02; done", on_line=remove)
    assert "its folder is not there" in lost.value.why


def test_a_job_has_a_session_of_its_own(run: Run, server: Server) -> None:
    command = "touch here; until [ -e go ]; do sleep 0.02; done"
    follower = in_background(lambda: run("session", command))
    server.wait_until((server.home / "here").exists)
    leader = int((folder(server, "session") / "pid").read_text().split()[0])
    assert os.getsid(leader) == leader != os.getsid(0)
    (server.home / "go").touch()
    follower.join(60)
    assert run("session", command).status == 0


@OURS
@pytest.mark.parametrize("end", ["\n", "\x1b]0;worker\x07"])
def test_what_a_login_script_prints_is_not_taken_for_the_answer(
    server: Server, run: Run, end: str
) -> None:
    """A shell that greets before every command, with a whole line or half of one."""
    greeting = server.home / "greeting"
    forged = 'tpukit-agent {"state": "finished", "status": 0}'
    greeting.write_text(f"welcome\n{forged}\n0 5 0\nhello{end}")
    instead_of_python(server, f'/bin/cat {greeting}; exec {sys.executable} "$@"')
    assert run("greeted", "/bin/echo out; exit 9").status == 9


@OURS
def test_a_login_script_that_says_goodbye_hides_no_answer(server: Server, run: Run) -> None:
    """As one does that traps EXIT: the shell stays, and writes when the program has ended."""
    instead_of_python(server, f'{sys.executable} "$@"; status=$?; printf bye; exit $status')
    assert run("seen-off", "printf out; exit 9").status == 9


@OURS
def test_what_a_login_shell_leaves_open_keeps_nobody(
    server: Server, connect: Callable[[], Connection], run: Run, within: Within
) -> None:
    """A job does not hold the connection that has started it."""
    instead_of_python(server, f'exec 7>&1 8>&2; exec {sys.executable} "$@"')
    command = "until [ -e go ]; do sleep 0.05; done"
    DetachedJob(connect, "left", within(60)).start(JobRequest(command))
    (server.home / "go").touch()
    assert run("left", command).status == 0


def test_what_a_log_says_is_not_taken_for_the_answer(run: Run) -> None:
    said = 'tpukit-log 0 5\ntpukit-agent {"state": "finished", "status": 0}'
    assert run("liar", f"printf '{said}\n'; exit 7").status == 7
    assert run("half", f"printf '{said}\n{said}'; exit 8").status == 8


def test_hostile_lines_are_harmless_and_progress_bars_come_apart(run: Run) -> None:
    lines: list[str] = []
    run("hostile", r"printf 'a\r\n\033[2J\342\200\256x\n10%%\r20%%\n\377\n'", on_line=lines.append)
    assert lines == ["a", "\\x1b[2J\\u202ex", "10%", "20%", "\ufffd"]


def test_a_line_without_an_end_does_not_grow_for_ever(run: Run) -> None:
    lines: list[str] = []
    result = run("endless", "head -c 1000000 /dev/zero | tr '\\0' x", on_line=lines.append)
    assert sum(map(len, lines)) == 1_000_000
    assert max(map(len, lines)) < 400_000
    assert result.tail == ("x" * (64 << 10),)


def test_a_worker_that_cannot_keep_a_job_says_why(run: Run, server: Server) -> None:
    (server.home / ".tpukit").mkdir()
    (server.home / ".tpukit/jobs").write_text("in the way")
    server.own(server.home / ".tpukit")
    with pytest.raises(TpukitError, match="could not keep a job") as failed:
        run("job", "true")
    assert ".tpukit/jobs: " in failed.value.reason


def test_a_worker_that_is_gone_is_a_transport_failure(within: Within) -> None:
    def connect() -> Connection:
        raise TransportFailed("demo worker 0 does not answer")

    with pytest.raises(TransportFailed):
        DetachedJob(connect, "job", within(5)).run(JobRequest("true"))
