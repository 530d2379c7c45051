"""One command on many workers at once."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil
import pytest

from tpukit.clock import SystemClock
from tpukit.errors import DeadlinePassed, TransportFailed
from tpukit.remote.broadcast import Broadcast
from tpukit.remote.environment import shell_lines
from tpukit.remote.runs import FleetRun, Order, Result, Stopped
from tpukit.remote.worker import RemoteWorker

from .clocks import HandClock
from .server import Server

#: Says that it is there, then lasts, with a child in a session of its own.
LASTING = "setsid sleep 1000 & echo $! >child; echo $$ >leader; sleep 1000"


class Listener:
    """Collects what each worker writes, a stream apart from the other."""

    def __init__(self) -> None:
        self.heard: dict[tuple[int, str], bytes] = defaultdict(bytes)

    def __call__(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        self.heard[worker.index, stream] += chunk


def run(
    workers: Sequence[RemoteWorker], order: Order, hear: Listener | None = None
) -> list[Result]:
    return FleetRun(order, SystemClock(), hear or Listener()).on_all(workers)


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


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_every_worker_answers_in_its_place_and_apart(workers: list[RemoteWorker]) -> None:
    hear = Listener()
    results = run(workers, Order("echo out $WORKER; echo err $WORKER >&2; exit $WORKER"), hear)
    assert [each.item.index for each in results] == [0, 1, 2]
    assert [each.value.status for each in results if each.value] == [0, 1, 2]
    assert hear.heard[2, "stdout"] == b"out 2\n"
    assert hear.heard[2, "stderr"] == b"err 2\n"
    assert len(hear.heard) == 6


def test_variables_reach_the_command_and_are_on_no_command_line(
    workers: list[RemoteWorker], crew: list[Server]
) -> None:
    word = secrets.token_hex(8)  # on no other command line of this machine
    secret = f"it's\na $secret `with` \\ everything {word}"
    hear = Listener()
    pattern = f"{word[:-1]}[{word[-1]}]"
    look = f"""printf %s "$TOKEN"; cat /proc/*/cmdline 2>/dev/null | grep -c '{pattern}' >&2"""
    run(workers, Order(look, shell_lines({"TOKEN": secret})), hear)
    assert hear.heard[0, "stdout"].decode() == secret
    assert hear.heard[0, "stderr"].strip() == b"0"
    assert not any(secret in command for server in crew for command in server.commands)


def test_torch_xla_is_told_its_device_unless_somebody_has(
    workers: list[RemoteWorker], crew: list[Server]
) -> None:
    crew[1].variables["TPUKIT_EMULATED_DEVICES"] = "4"
    crew[2].variables["PJRT_DEVICE"] = "ROCM"
    hear = Listener()
    run(workers, Order("printf %s $PJRT_DEVICE", shell_lines({})), hear)
    assert [hear.heard[index, "stdout"] for index in range(3)] == [b"TPU", b"CPU", b"ROCM"]


def test_a_recipe_s_programs_come_first(workers: list[RemoteWorker], crew: list[Server]) -> None:
    hear = Listener()
    order = Order('printf "%s %s" "$VIRTUAL_ENV" "$PATH"', shell_lines({}, "jax"))
    run(workers[:1], order, hear)
    environment = f"{crew[0].home}/.tpukit/venvs/jax"
    assert hear.heard[0, "stdout"].decode() == f"{environment} {environment}/bin:{crew[0].path}"


def test_input_goes_whole_to_every_worker_at_its_own_pace(workers: list[RemoteWorker]) -> None:
    """One worker reads nothing, another only when the source has ended."""
    pieces = [bytes([number]) * 100_000 for number in range(30)]
    order = Order(
        "case $WORKER in 0) wc -c;; 1) sleep 0.3; wc -c;; 2) true;; esac",
        stdin=Broadcast(iter(pieces)).reader,
    )
    hear = Listener()
    run(workers, order, hear)
    assert hear.heard[0, "stdout"].split() == hear.heard[1, "stdout"].split() == [b"3000000"]


def test_fail_fast_ends_the_command_on_the_others(
    workers: list[RemoteWorker], crew: list[Server]
) -> None:
    command = (
        f"if [ $WORKER = 1 ]; then until [ -e go ]; do sleep 0.02; done; exit 7; fi; {LASTING}"
    )
    found: list[int] = []

    def release() -> None:
        found.extend(pids([crew[0], crew[2]]))
        (crew[1].home / "go").touch()

    with meanwhile(release):
        results = run(workers, Order(command, fail_fast=True))
    assert results[1].value is not None
    assert results[1].value.status == 7
    assert isinstance(results[0].error, Stopped)
    assert isinstance(results[2].error, Stopped)
    assert len(found) == 4
    assert all(gone(pid) for pid in found)


def test_fail_fast_starts_nothing_more(workers: list[RemoteWorker], crew: list[Server]) -> None:
    results = run(workers, Order("exit 3", at_once=1, fail_fast=True))
    assert [type(each.error) for each in results] == [type(None), Stopped, Stopped]
    assert crew[1].commands == crew[2].commands == []


def test_a_worker_s_own_limit_ends_its_command_and_no_other(
    workers: list[RemoteWorker], crew: list[Server]
) -> None:
    command = f"if [ $WORKER != 1 ]; then echo fine; exit; fi; {LASTING}"
    clock = HandClock()
    going = FleetRun(Order(command, limit=300.0), clock, Listener())

    def pass_time() -> None:
        """Let the limit pass when the command lasts on worker 1 and on no other."""
        pids([crew[1]])
        crew[1].wait_until(lambda: [each.index for each in going.unreached] == [1])
        clock.advance(300.0)

    with meanwhile(pass_time):
        results = going.on_all(workers)
    assert [each.ok for each in results] == [True, False, True]
    assert isinstance(results[1].error, DeadlinePassed)
    assert results[1].error.why == "it was ended"
    assert all(gone(pid) for pid in pids([crew[1]]))


def test_an_interrupt_ends_the_command_everywhere(
    workers: list[RemoteWorker], crew: list[Server]
) -> None:
    """It comes twice, as from a wrapper that passes on what the terminal has sent to all."""
    found: list[int] = []

    def interrupt() -> None:
        found.extend(pids(crew))
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    going = FleetRun(Order(LASTING), SystemClock(), Listener())
    with pytest.raises(KeyboardInterrupt), meanwhile(interrupt):
        going.on_all(workers)
    assert going.unreached == []
    assert len(found) == 6
    assert all(gone(pid) for pid in found)


def test_an_interrupt_says_whom_it_did_not_reach(
    workers: list[RemoteWorker], crew: list[Server]
) -> None:
    """Worker 1's connection breaks before."""
    going = FleetRun(Order(LASTING), SystemClock(), Listener())

    def interrupt() -> None:
        pids(crew)
        crew[1].cut()
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), meanwhile(interrupt):
        going.on_all(workers)
    assert [each.index for each in going.unreached] == [1]
    for pid in pids([crew[1]]):
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)


def test_one_lost_worker_is_its_own_outcome_alone(
    workers: list[RemoteWorker], crew: list[Server]
) -> None:
    crew[2].loses = lambda number: True
    results = run(workers, Order("echo x"))
    assert [each.ok for each in results] == [True, True, False]
    assert isinstance(results[2].error, TransportFailed)
    assert "may have run" in results[2].error.why


def test_a_command_whose_environment_was_cut_off_is_not_run(
    workers: list[RemoteWorker], crew: list[Server]
) -> None:
    """The connection breaks while the variables are on their way."""
    crew[0].on_command = crew[0].cut
    order = Order("touch ran", shell_lines({f"V{number}": "x" * 1000 for number in range(3000)}))
    results = run(workers[:1], order)
    assert isinstance(results[0].error, TransportFailed)
    assert not (crew[0].home / "ran").exists()


@pytest.mark.parametrize("size", [100_000_000])
def test_much_output_arrives_whole_and_is_not_kept(workers: list[RemoteWorker], size: int) -> None:
    before = psutil.Process().memory_info().rss
    total = 0

    def count(worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        nonlocal total
        total += len(chunk)

    # The server of these tests lives in this process and keeps what we have not yet taken.
    order = Order(f"head -c {size} /dev/zero")
    results = FleetRun(order, SystemClock(), count).on_all(workers[:1])
    assert total == size
    assert results[0].value is not None
    assert len(results[0].value.stdout) == order.keep
    assert psutil.Process().memory_info().rss - before < size / 2
