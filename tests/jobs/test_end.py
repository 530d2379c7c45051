"""Processes are ended for good: those of a run, and those that hold a TPU device."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.agent_program import agent_words
from support.processes import alive, eventually
from support.ssh_fixtures import OURS, Within, ubuntu_or_ours
from support.ssh_server import Server

from tpukit.agent.live_processes import look
from tpukit.clock import SystemClock
from tpukit.jobs.attached import AttachedRun, CommandRequest
from tpukit.jobs.detached_job import DetachedJob, JobRequest
from tpukit.jobs.end import EndReport, Holder, end_processes
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.worker import RemoteWorker

pytestmark = pytest.mark.process

JOB = "run.train"
End = Callable[..., EndReport]
Start = Callable[..., list[int]]


server = pytest.fixture(ubuntu_or_ours)


@pytest.fixture
def device(server: Server) -> Path:
    """The stand-in for a TPU device on an emulated worker."""
    folder = server.home / ".tpukit" / "emulated-devices"
    folder.mkdir(parents=True)
    temporary = server.home / "tmp"
    temporary.mkdir()
    server.variables |= {"TPUKIT_EMULATED_DEVICES": "1", "TMPDIR": str(temporary)}
    (folder / "accel0").touch()
    server.own(server.home / ".tpukit")
    return folder / "accel0"


@pytest.fixture
def lock(device: Path, server: Server) -> Path:
    """The lock file that libtpu has left behind."""
    file = server.home / "tmp" / "libtpu_lockfile"
    file.touch()
    return file


@pytest.fixture
def connect(connector: Connector, server: Server, within: Within) -> Callable[[], Connection]:
    return lambda: connector.connect(server.target(), within(60))


@pytest.fixture
def start(connect: Callable[[], Connection], server: Server, within: Within) -> Iterator[Start]:
    """Start a job and return the processes whose ids it writes into the file `pids`."""
    begun: list[int] = []

    def start(command: str, wanted: int = 1, job: str = JOB) -> list[int]:
        DetachedJob(connect, job, within(60)).start(JobRequest(command))
        file = server.home / "pids"
        server.wait_until(lambda: file.exists() and len(file.read_text().split()) >= wanted)
        begun.extend(map(int, file.read_text().split()))
        file.unlink()
        return begun[-wanted:]

    yield start
    for pid in begun:
        if alive(pid):
            os.kill(pid, 9)


@pytest.fixture
def end(connection: Connection) -> End:
    def end(**given: Any) -> EndReport:
        options: dict[str, Any] = {"jobs": [JOB], "grace": 30.0, **given}
        return end_processes(connection, SystemClock(), **options)

    return end


def status(server: Server, job: str = JOB) -> str:
    """Return the job's exit status, once it has one."""
    file = server.home / ".tpukit" / "jobs" / job / "status"
    server.wait_until(file.exists)
    return file.read_text().strip()


def holder(server: Server, device: Path, job: str = "") -> subprocess.Popen[bytes]:
    """Start a process without a parent's care that holds the device."""
    program = f"import time; file = open({str(device)!r}); print(flush=True); time.sleep(1000)"
    environment = {"TPUKIT_JOB": job} if job else {}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout
    process.stdout.readline()
    return process


def test_a_job_s_whole_family_is_ended(start: Start, end: End, server: Server) -> None:
    """A child in a session of its own keeps the mark; one that drops the mark keeps the session."""
    pids = start(
        "setsid sleep 1000 & echo $! >>pids; env -i sleep 1000 & echo $! >>pids; "
        "echo $$ >>pids; sleep 1000",
        wanted=3,
    )
    report = end()
    assert not any(map(alive, pids))
    assert report.forced == 0
    assert status(server) == "143"


def test_a_program_that_ends_in_order_tells_its_own_status(
    start: Start, end: End, server: Server
) -> None:
    """Such as one that writes a checkpoint when it is asked to end."""
    start("trap 'echo saved; exit 3' TERM; echo $$ >>pids; while :; do sleep 0.05; done")
    end()
    assert status(server) == "3"


def test_a_program_that_ignores_term_gets_kill(start: Start, end: End, server: Server) -> None:
    (pid,) = start("trap '' TERM; echo $$ >>pids; while :; do sleep 0.05; done")
    report = end(grace=0.3)
    assert not alive(pid)
    assert report.forced > 0
    assert status(server) == "137"


def test_a_stopped_program_ends_in_order_too(start: Start, end: End, server: Server) -> None:
    """A stopped process gets its TERM when it goes on."""
    (pid,) = start("trap 'exit 3' TERM; echo $$ >>pids; while :; do sleep 0.05; done")
    os.kill(pid, signal.SIGSTOP)
    report = end(grace=5.0)
    assert report.forced == 0
    assert status(server) == "3"


def test_a_runner_that_is_held_up_gets_time_to_say_how_its_command_ended(
    start: Start, end: End, server: Server
) -> None:
    start("trap 'exit 3' TERM; echo $$ >>pids; while :; do sleep 0.05; done")
    record = server.home / ".tpukit" / "jobs" / JOB / "pid"
    os.kill(int(record.read_text().split()[0]), signal.SIGSTOP)
    report = end()
    assert report.forced == 0
    assert status(server) == "3"


def test_a_run_that_has_not_started_its_command_never_does(
    connect: Callable[[], Connection], end: End, server: Server, within: Within
) -> None:
    """A busy worker's runner may be that late; here its first program stops it."""
    programs = server.home / "bin"
    programs.mkdir()
    (programs / "sh").write_text(
        f"""#!/bin/sh
case "$*" in *enclose*) kill -STOP $PPID; touch {server.home}/stopped;; esac
exec /bin/sh "$@"
"""
    )
    (programs / "sh").chmod(0o755)
    server.path = f"{server.own(programs)}:{server.path}"
    DetachedJob(connect, JOB, within(60)).start(JobRequest("touch begun; exec sleep 1000"))
    server.wait_until((server.home / "stopped").exists)
    assert end().forced == 0
    assert status(server) == "143"
    assert not (server.home / "begun").exists()


def test_a_finished_job_stays_as_it_is(
    start: Start, end: End, server: Server, connect: Callable[[], Connection], within: Within
) -> None:
    start("echo $$ >>pids; exit 4")
    DetachedJob(connect, JOB, within(60)).follow()
    assert end().ended == 0
    assert status(server) == "4"


def test_a_lost_job_is_not_said_to_have_been_ended(start: Start, end: End, server: Server) -> None:
    """Its runner was killed, and its command has ended since, nobody knows how."""
    (pid,) = start("echo $$ >>pids; while ! [ -e go ]; do sleep 0.05; done")
    folder = server.home / ".tpukit" / "jobs" / JOB
    os.kill(int((folder / "pid").read_text().split()[0]), signal.SIGKILL)
    (server.home / "go").touch()
    server.wait_until(lambda: not alive(pid))
    assert end().ended == 0
    assert not (folder / "status").exists()


@pytest.mark.parametrize(("answer", "left"), [("-", "143"), ("", "137")])
def test_of_a_job_whose_runner_is_gone_the_end_says_how_it_ended(
    start: Start, end: End, server: Server, answer: str, left: str
) -> None:
    """Where sudo asks for no password it is root who says so, in a file of the user's own."""
    (pid,) = start(f"trap '{answer}' TERM; echo $$ >>pids; while :; do sleep 0.05; done")
    folder = server.home / ".tpukit" / "jobs" / JOB
    os.kill(int((folder / "pid").read_text().split()[0]), signal.SIGKILL)
    end(grace=30.0 if answer else 0.3)
    assert not alive(pid)
    assert status(server) == left
    assert (folder / "status").stat().st_uid == folder.stat().st_uid


def test_ctrl_c_s_signal_reaches_a_job_s_program(start: Start, end: End, server: Server) -> None:
    """Which is not what a shell leaves of it to what it starts in the background."""
    program = (
        "import os, sys, time\ntry: print(os.getpid(), file=open('pids', 'w'), flush=True); "
        "time.sleep(1000)\nexcept KeyboardInterrupt: sys.exit(7)"
    )
    start(f'exec python3 -c "{program}"')
    end(first="INT")
    assert status(server) == "7"


def test_without_a_control_group_an_attached_run_is_not_said_to_have_ended(
    server: Server, connect: Callable[[], Connection]
) -> None:
    """`env -i setsid -f` drops the mark, the session and the parent; the output stays open."""
    leave = "env -i setsid -f sh -c 'echo $$ >pids; exec sleep 1000'"
    worker = RemoteWorker(0, connect, "demo")
    going = AttachedRun(CommandRequest(f"{leave}; sleep 1000"), SystemClock(), lambda *_: None)
    thread = threading.Thread(target=lambda: going.on_all([worker]), daemon=True)
    thread.start()
    pids = server.home / "pids"
    server.wait_until(lambda: pids.exists() and bool(pids.read_text()))
    going.stop()
    thread.join(60)
    os.kill(int(pids.read_text()), signal.SIGKILL)
    assert not thread.is_alive()
    assert going.ended == "its processes that could be found were ended on every worker"


def test_a_recycled_process_id_is_nobody_s(server: Server, end: End) -> None:
    """The leader's id is another process's by now: this test's own."""
    folder = server.home / ".tpukit" / "jobs" / JOB
    folder.mkdir(parents=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (folder / "pid").write_text(f"{os.getpid()} {boot} 12345\n")
    server.own(server.home / ".tpukit")
    assert end().ended == 0


def test_who_holds_a_device_and_belongs_to_no_such_run_stays_and_is_told(
    server: Server, end: End, device: Path, lock: Path
) -> None:
    """Neither an orphan, nor another run: the lock file stays with them."""
    orphan = holder(server, device)
    other = holder(server, device, job=f"{server.home}/.tpukit/jobs/run.other")
    report = end(holders="told")
    assert (orphan.poll(), other.poll()) == (None, None)
    assert {(process.pid, process.run) for process in report.spared} == {
        (orphan.pid, ""),
        (other.pid, "other"),
    }
    assert (report.holders_ended, report.lock_removed, lock.exists()) == (0, False, True)
    report = end(jobs=[], holders="ended")
    assert (report.holders_ended, report.lock_removed, lock.exists()) == (2, True, False)
    assert (orphan.wait(60), other.wait(60)) == (-signal.SIGTERM, -signal.SIGTERM)


#: Closes the device when it is asked to end, and goes on, as a kernel that takes its time for it.
_LINGERS = """
import signal, sys, time
file = open(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: file.close())
print(flush=True)
while True:
    time.sleep(0.1)
"""


def test_a_holder_that_was_seen_is_waited_for_until_it_is_gone(
    server: Server, end: End, device: Path, lock: Path
) -> None:
    """Its files are closed before its memory is free: no open file does not mean a free chip."""
    words = [sys.executable, "-c", _LINGERS, str(device)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as lingers:
        assert lingers.stdout
        lingers.stdout.readline()
        report = end(jobs=[], holders="ended", grace=1.5)
        lingers.kill()
    assert (report.holders_ended, report.forced, report.lock_removed) == (1, 1, True)


#: Its first thread ends, and another one goes on.
_HEADLESS = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_as_long_as_one_of_its_threads() -> None:
    with subprocess.Popen([sys.executable, "-c", _HEADLESS], stdout=subprocess.PIPE) as headless:
        status = Path(f"/proc/{headless.pid}/status")
        eventually(lambda: "State:\tZ" in status.read_text())
        alive = headless.pid in look()
        headless.kill()
        assert alive
        eventually(lambda: headless.pid not in look())


def test_a_lock_file_that_nobody_has_goes_with_a_run(
    server: Server, end: End, device: Path, lock: Path
) -> None:
    assert end(holders="told").lock_removed
    assert not lock.exists()


def test_without_a_run_s_end_no_device_and_no_lock_file_is_touched(
    server: Server, end: End, device: Path, lock: Path
) -> None:
    other = holder(server, device)
    assert end(holders="none") == EndReport(certain=False)  # it may be on its way
    assert other.poll() is None
    assert lock.exists()
    other.kill()
    other.wait()


@OURS
def test_holders_are_ended_as_root_where_that_needs_no_password(
    server: Server, end: End, device: Path, tmp_path: Path
) -> None:
    """A device's holder may be another user's, and so may be what sudo has started."""
    tools, calls = tmp_path / "tools", tmp_path / "calls"
    tools.mkdir()
    (tools / "sudo").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{calls}\nshift\nexec "$@"\n')
    (tools / "sudo").chmod(0o755)
    server.path = f"{tools}:{server.path}"
    orphan = holder(server, device)
    assert end(holders="ended").holders_ended == 1
    assert orphan.wait(60) < 0
    check, program = calls.read_text().splitlines()[-2:]
    assert check.startswith(f"-n test -r {server.home}/.tpukit/agent/")
    assert program.startswith(f"-n python3 -I -S {server.home}/.tpukit/agent/")


#: Devices as on TPU VMs: /dev/accelN up to v4, /dev/vfio/N from v5p on; /dev/vfio/vfio is VFIO's.
REAL_DEVICES = """
mount -t tmpfs none /tmp && mount -t tmpfs none /dev && mkdir /dev/vfio || exit
touch /dev/null /dev/accel0 /dev/vfio/0 /dev/vfio/vfio /tmp/libtpu_lockfile
for device in accel0 vfio/0 vfio/vfio; do sleep 1000 3</dev/$device & done
exec "$@"
"""


@pytest.fixture
def agent_home() -> Iterator[Path]:
    """A home folder that a mount over /tmp does not hide."""
    with TemporaryDirectory(prefix="tpukit-agent-", dir="/var/tmp") as folder:
        yield Path(folder)


def with_real_devices(home: Path, holders: str, prepared: str = "true") -> dict[str, Any]:
    """Return the answer on holders of devices that are files of a mount namespace of its own."""
    alone = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("there are no user namespaces: kill on a real TPU's devices is NOT checked")
    request = {"jobs": [], "worker": "", "holders": holders, "signal": "TERM", "grace": 5.0}
    python = os.path.realpath(sys.executable)
    words = agent_words(home, "end_runs", emulated=False, python=python)
    done = subprocess.run(
        [*alone, "--kill-child", "sh", "-c", f"{prepared} && {REAL_DEVICES}", "sh", *words],
        input=json.dumps(request).encode() + b"\n",
        stdout=subprocess.PIPE,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.rpartition(b"tpukit-agent ")[2])
    return answer


def test_holders_of_real_devices_are_ended(agent_home: Path) -> None:
    answer = with_real_devices(agent_home, "ended")
    assert (answer["holders_ended"], answer["left"], answer["held"]) == (2, [], [])
    assert answer["lock_removed"]


def test_google_s_own_runtime_is_named_and_not_killed_for_its_unit_to_start_it_again(
    tmp_path: Path, agent_home: Path
) -> None:
    """Its processes are known by their user: here the namespace's only user has that name."""
    # The folder, not the file: a mount over a file ends when another test's useradd replaces it.
    (tmp_path / "passwd").write_text("tpu-runtime:x:0:0::/:/bin/sh\n")
    named = f"mount --bind {tmp_path} /etc"
    for holders in ("ended", "told"):
        answer = with_real_devices(agent_home, holders, named)
        assert (answer["holders_ended"], answer["left"]) == (0, [])
        assert [each["user"] for each in answer["held"]] == ["tpu-runtime"] * 2
        assert not answer["lock_removed"]
    held = Holder(5380, "", "/grpc_tpu_worker/main", "tpu-runtime")
    assert str(held) == "PID 5380 (Google's tpu-runtime, /grpc_tpu_worker/main)"
