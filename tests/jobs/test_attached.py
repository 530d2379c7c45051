"""One command on many workers at once."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.clocks import HandClock, SteppedClock
from support.openssh_server import UbuntuServer, sshd_path
from support.processes import alive
from support.ssh_fixtures import ALL_OURS, ubuntus_or_ours
from support.ssh_server import Server

from tpukit.clock import SystemClock
from tpukit.errors import DeadlinePassed, Interrupted, TransportFailed
from tpukit.jobs.attached import (
    AttachedRun,
    CommandCancelled,
    CommandOutcome,
    CommandRequest,
    shield,
)
from tpukit.jobs.shell_environment import launch, shell_lines
from tpukit.jobs.stdin import Broadcast
from tpukit.ssh.client import Connection
from tpukit.ssh.programs import program_text, shell_line
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import quote

pytestmark = pytest.mark.process

servers = pytest.fixture(ubuntus_or_ours)

#: Says that it is there, then lasts, with a child in a session of its own.
LASTING = "setsid sleep 1000 & echo $! >child; echo $$ >leader; sleep 1000"


class Collected:
    """Collects what each worker writes, a stream apart from the other."""

    def __init__(self) -> None:
        self.output: dict[tuple[int, str], bytes] = defaultdict(bytes)

    def __call__(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        self.output[worker.index, stream] += chunk


def run(
    workers: Sequence[RemoteWorker], request: CommandRequest, on_output: Collected | None = None
) -> list[CommandOutcome]:
    return AttachedRun(request, SystemClock(), on_output or Collected()).on_all(workers)


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Act in a thread of its own, which has ended when the block has."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(120)


def pids(servers: Sequence[Server]) -> list[int]:
    """Return the processes of LASTING on these workers, once all have said so."""
    files = [server.home / name for server in servers for name in ("child", "leader")]
    servers[0].wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


@ALL_OURS
def test_every_worker_answers_in_its_place_and_apart(workers: list[RemoteWorker]) -> None:
    seen = Collected()
    results = run(
        workers, CommandRequest("echo out $WORKER; echo err $WORKER >&2; exit $WORKER"), seen
    )
    assert [result.item.index for result in results] == [0, 1, 2]
    assert [result.value.status for result in results if result.value] == [0, 1, 2]
    assert seen.output[2, "stdout"] == b"out 2\n"
    assert seen.output[2, "stderr"] == b"err 2\n"
    assert len(seen.output) == 6


@ALL_OURS
def test_variables_reach_the_command_and_are_on_no_command_line(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    word = secrets.token_hex(8)  # on no other command line of this machine; no quoting changes it
    secret = f"it's\na $secret `with` \\ everything {word}"
    seen = Collected()
    pattern = f"{word[:-1]}[{word[-1]}]"
    look = f"""printf %s "$TOKEN"; cat /proc/*/cmdline 2>/dev/null | grep -c '{pattern}' >&2"""
    run(workers, CommandRequest(look, shell_lines({"TOKEN": secret})), seen)
    assert seen.output[0, "stdout"].decode() == secret
    assert seen.output[0, "stderr"].strip() == b"0"
    assert all(server.commands for server in servers)
    assert not any(word in command for server in servers for command in server.commands)


@ALL_OURS
def test_torch_xla_is_told_its_device_unless_somebody_has(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    servers[1].variables["TPUKIT_EMULATED_DEVICES"] = "4"
    servers[2].variables["PJRT_DEVICE"] = "ROCM"
    seen = Collected()
    run(workers, CommandRequest("printf %s $PJRT_DEVICE", shell_lines({})), seen)
    assert [seen.output[index, "stdout"] for index in range(3)] == [b"TPU", b"CPU", b"ROCM"]


@ALL_OURS
def test_a_recipe_s_programs_come_first(workers: list[RemoteWorker], servers: list[Server]) -> None:
    seen = Collected()
    for server in servers:
        python = server.home / ".tpukit/venvs/jax/bin/python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
    lines = shell_lines({"WORD": "own"}, "jax")
    request = CommandRequest('printf "%s %s %s" "$WORD" "$VIRTUAL_ENV" "$PATH"', lines)
    run(workers[:1], request, seen)
    environment = f"{servers[0].home}/.tpukit/venvs/jax"
    wanted = f"own {environment} {environment}/bin:{servers[0].path}"
    assert seen.output[0, "stdout"].decode() == wanted


@ALL_OURS
def test_input_goes_whole_to_every_worker_at_its_own_pace(workers: list[RemoteWorker]) -> None:
    """One worker reads nothing, another only when the source has ended."""
    pieces = [bytes([number]) * 100_000 for number in range(30)]
    request = CommandRequest(
        "case $WORKER in 0) cksum;; 1) sleep 0.3; cksum;; 2) true;; esac",
        stdin=Broadcast(iter(pieces)).reader,
    )
    seen = Collected()
    run(workers, request, seen)
    wanted = subprocess.check_output("cksum", input=b"".join(pieces))
    assert seen.output[0, "stdout"] == seen.output[1, "stdout"] == wanted


def test_fail_fast_ends_the_command_on_the_others(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    command = (
        f"if [ $WORKER = 1 ]; then until [ -e go ]; do sleep 0.02; done; exit 7; fi; {LASTING}"
    )
    found: list[int] = []

    def release() -> None:
        found.extend(pids([servers[0], servers[2]]))
        (servers[1].home / "go").touch()

    with meanwhile(release):
        results = run(workers, CommandRequest(command, fail_fast=True))
    assert results[1].value is not None
    assert results[1].value.status == 7
    assert isinstance(results[0].error, CommandCancelled)
    assert isinstance(results[2].error, CommandCancelled)
    assert len(found) == 4
    assert not any(map(alive, found))


def test_fail_fast_starts_nothing_more(workers: list[RemoteWorker], servers: list[Server]) -> None:
    results = run(workers, CommandRequest("exit 3", at_once=1, fail_fast=True))
    assert [type(result.error) for result in results] == [
        type(None),
        CommandCancelled,
        CommandCancelled,
    ]
    assert servers[1].commands == servers[2].commands == []


def test_a_worker_s_own_limit_ends_its_command_and_no_other(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    command = f"if [ $WORKER != 1 ]; then echo fine; exit; fi; {LASTING}"
    clock = HandClock()
    going = AttachedRun(CommandRequest(command, limit=300.0), clock, Collected())

    def pass_time() -> None:
        """Let the limit pass when the command lasts on worker 1 and on no other."""
        pids([servers[1]])
        servers[1].wait_until(lambda: len(going.remains) == 1)
        clock.advance(300.0)

    with meanwhile(pass_time):
        results = going.on_all(workers)
    assert [result.error is None for result in results] == [True, False, True]
    assert isinstance(results[1].error, DeadlinePassed)
    assert results[1].error.why == "its processes that could be found were ended"
    assert not any(map(alive, pids([servers[1]])))


def test_an_interrupt_ends_the_command_everywhere(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """It comes twice, as from a wrapper that passes on what the terminal has sent to all."""
    found: list[int] = []

    def interrupt() -> None:
        found.extend(pids(servers))
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    going = AttachedRun(CommandRequest(LASTING), SystemClock(), Collected())
    with pytest.raises(Interrupted), meanwhile(interrupt):
        going.on_all(workers)
    assert going.remains == ()
    assert len(found) == 6
    assert not any(map(alive, found))


def test_an_interrupt_ends_what_a_lost_connection_has_left(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """Worker 1 can be reached again."""
    found: list[int] = []

    def interrupt() -> None:
        found.extend(pids(servers))
        servers[1].cut()
        os.kill(os.getpid(), signal.SIGINT)

    going = AttachedRun(CommandRequest(LASTING), SystemClock(), Collected())
    with pytest.raises(Interrupted), meanwhile(interrupt):
        going.on_all(workers)
    assert going.remains == ()
    assert not any(map(alive, found))


#: Says that it is there, then notes each Ctrl-C, and saves for some seconds after the first one.
_SAVES = """
import pathlib, signal, time
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(1) or pathlib.Path("asked").touch())
pathlib.Path("there").touch()
while not asked:
    time.sleep(0.1)
until = time.monotonic() + 3
while time.monotonic() < until:
    time.sleep(0.1)
pathlib.Path("saved").write_text(str(len(asked)))
"""


def test_who_ends_a_command_keeps_the_connection_that_was_made_anew(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """Whoever followed the command on the lost one takes longer: no second Ctrl-C comes of that."""
    asked, there, saved = (servers[1].home / name for name in ("asked", "there", "saved"))

    def interrupt() -> None:
        servers[1].wait_until(there.exists)
        servers[1].cut()
        os.kill(os.getpid(), signal.SIGINT)

    def look_for_the_slice() -> None:
        servers[1].wait_until(asked.exists)

    request = CommandRequest(quote(["python3", "-c", _SAVES]))
    going = AttachedRun(request, SystemClock(), Collected())
    with pytest.raises(Interrupted), meanwhile(interrupt):
        going.on_all([replace(workers[1], check_slice=look_for_the_slice)])
    assert going.remains == ()
    assert saved.read_text() == "1"


def test_an_interrupt_says_whom_it_did_not_reach(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """Worker 1's connection breaks before, and there is no other."""
    going = AttachedRun(CommandRequest(LASTING), SystemClock(), Collected())

    lost = threading.Event()

    def connect() -> Connection:
        if lost.is_set():
            raise TransportFailed("demo worker 1 does not answer")
        return workers[1].connect()

    def interrupt() -> None:
        pids(servers)
        lost.set()
        servers[1].cut()
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted), meanwhile(interrupt):
        going.on_all([workers[0], replace(workers[1], connect=connect), workers[2]])
    (left,) = going.remains
    assert left.startswith("the command on demo worker 1 ")
    for pid in pids([servers[1]]):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_an_interrupt_says_at_once_whom_it_ends_and_then_who_is_silent(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """The command takes longer to end than a worker has to answer: who answers is not named."""
    sshd_path()  # a server of ours lives in this process and cannot stand still
    assert isinstance(servers[1], UbuntuServer)
    stalled = servers[1].stalled
    for server in servers:
        (server.home / ".bashrc").write_text("")  # what it prints would be an answer too
    lasting = f"trap : INT; {LASTING.removesuffix('; sleep 1000')}; while :; do sleep 0.1; done"
    said: list[str] = []

    def interrupt() -> None:
        pids(servers)
        with stalled():
            os.kill(os.getpid(), signal.SIGINT)
            servers[0].wait_until(lambda: len(said) == 2)

    going = AttachedRun(CommandRequest(lasting), SystemClock(), Collected(), said.append)
    with pytest.raises(Interrupted), meanwhile(interrupt):
        going.on_all(workers)
    assert said == [
        "ending the command on demo worker 0-2",
        "no answer has come from demo worker 1 yet; Ctrl-C leaves the command there",
    ]


@ALL_OURS
def test_one_lost_worker_is_its_own_outcome_alone(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    servers[2].loses = lambda number: True
    results = run(workers, CommandRequest("echo x"))
    assert [result.error is None for result in results] == [True, True, False]
    assert isinstance(results[2].error, TransportFailed)
    assert "may have run" in results[2].error.why


def test_a_command_whose_environment_was_cut_off_is_not_run(tmp_path: Path) -> None:
    """To the program on the worker a lost connection looks like the end of its input."""
    program = program_text("agent/scope.sh", "jobs/run.sh") + launch("touch ran", {})
    line = shell_line(program, ["mark", "", "input"])
    whole = shell_lines({"A": "1"}) + "mark\n"
    for end in range(len(whole) - 1):
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, input=whole[:end], text=True)
        assert (done.returncode, (tmp_path / "ran").exists()) == (75, False), whole[:end]
    subprocess.run(["sh", "-c", line], cwd=tmp_path, input=whole, text=True, check=True)
    assert (tmp_path / "ran").exists()


def test_an_interrupt_at_once_is_the_same_one_and_a_later_one_is_not() -> None:
    """The first ones are passed on by a wrapper, and waited out; then somebody insists."""
    clock, caught = SteppedClock(), threading.Semaphore(0)
    begun, over = threading.Event(), threading.Event()

    def interrupt(number: int, frame: object) -> None:
        caught.release()
        raise KeyboardInterrupt

    def interrupt_thrice() -> None:
        for seconds in (0.0, 0.0, 2.0):
            assert begun.wait(60)
            clock.pauses.append(seconds)
            os.kill(os.getpid(), signal.SIGINT)
            caught.acquire(timeout=10)

    def stop() -> None:
        begun.set()
        over.wait(10)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with meanwhile(interrupt_thrice):
            try:
                with pytest.raises(KeyboardInterrupt):
                    shield(stop, clock)
                assert clock.monotonic() == 2.0
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                over.set()
    finally:
        signal.signal(signal.SIGINT, before)


@ALL_OURS
def test_much_output_arrives_whole_and_is_not_kept(workers: list[RemoteWorker]) -> None:
    size = 100_000_000
    before = psutil.Process().memory_info().rss
    total = 0

    def count(worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        nonlocal total
        total += len(chunk)

    # The server of these tests lives in this process and keeps what we have not yet taken.
    request = CommandRequest(f"head -c {size} /dev/zero")
    results = AttachedRun(request, SystemClock(), count).on_all(workers[:1])
    assert total == size
    assert results[0].value is not None
    assert len(results[0].value.stdout) == request.keep
    assert psutil.Process().memory_info().rss - before < size / 2
