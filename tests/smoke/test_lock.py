"""One client at a time tests the devices of a slice, over real connections to a real worker."""

from __future__ import annotations

import fcntl
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest
from support.agent_program import agent_words
from support.ssh_server import Server

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import DeadlinePassed
from tpukit.ssh.client import Connector
from tpukit.ssh.keys import ensure_key_pair
from tpukit.ssh.worker import RemoteWorker
from tpukit.ssh.worker_files import SMOKE_LOCK
from tpukit.ssh.worker_lock import worker_lock

pytestmark = pytest.mark.process


def within(seconds: float) -> Deadline:
    return Deadline.after(SystemClock(), seconds)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    key = ensure_key_pair(tmp_path / "keys")
    (tmp_path / "home").mkdir()
    server = Server(tmp_path / "home").accept(key)
    yield server
    server.close()


@pytest.fixture
def worker(server: Server, tmp_path: Path) -> Iterator[RemoteWorker]:
    key = ensure_key_pair(tmp_path / "keys")
    with Connector(key, SystemClock()) as connector:
        yield RemoteWorker(0, lambda: connector.connect(server.target(), within(60)), "demo")


def smoke_lock(
    worker: RemoteWorker, deadline: Deadline, on_wait: Callable[[str], None] = lambda line: None
) -> AbstractContextManager[bool]:
    ahead, late = "another smoke test of the slice runs", "the smoke test had no turn"
    return worker_lock(worker, SMOKE_LOCK, deadline, ahead=ahead, late=late, on_wait=on_wait)


def second_client(worker: RemoteWorker, seconds: float) -> tuple[threading.Thread, threading.Event]:
    """Take the lock in a thread; the event says that it has it, or that the wait is over."""
    locked = threading.Event()

    def take() -> None:
        with smoke_lock(worker, within(seconds)):
            locked.set()

    thread = threading.Thread(target=take)
    thread.start()
    return thread, locked


def test_the_second_client_waits_until_the_first_is_done(
    server: Server, worker: RemoteWorker
) -> None:
    with smoke_lock(worker, within(300)):
        thread, locked = second_client(worker, 300)
        server.wait_until(lambda: len(server.commands) == 4)  # two of them sent the agent
        assert not locked.wait(0.5)
    assert locked.wait(60)
    thread.join(60)


def test_a_client_that_is_lost_does_not_keep_the_lock(server: Server, worker: RemoteWorker) -> None:
    with smoke_lock(worker, within(300)):
        server.cut()
        thread, locked = second_client(worker, 300)
        assert locked.wait(60)
    thread.join(60)


def test_who_waits_for_the_lock_says_who_has_it_and_passes_its_own_deadline(
    worker: RemoteWorker, tmp_path: Path
) -> None:
    told: list[str] = []
    refused = pytest.raises(DeadlinePassed, match="the smoke test had no turn")
    with smoke_lock(worker, within(300)):
        with refused as caught, smoke_lock(worker, within(3.0), told.append):
            pass
        holder = (tmp_path / "home/.tpukit/smoke.lock").read_text().strip()
        fix = caught.value.fix
        assert fix
        assert fix.arguments[:6] == ("tpukit", "ssh", "demo", "--worker", "0", "--")
        with worker.connect() as connection:
            assert connection.run(" ".join(fix.arguments[6:]), deadline=within(60)).ok
        with smoke_lock(worker, within(60)):  # the first client has lost it
            pass
    assert told == [f"another smoke test of the slice runs: {holder}"]
    assert re.match(r"PID \d+", holder)
    assert caught.value.why == told[0]


def test_a_worker_without_python_holds_nobody_up(server: Server, worker: RemoteWorker) -> None:
    server.path = "/no/such/folder"
    started = time.monotonic()
    with smoke_lock(worker, within(300)):
        assert time.monotonic() - started < 60


def test_who_waited_for_a_lock_that_is_gone_waits_for_the_next_and_leaves_no_lock(
    tmp_path: Path,
) -> None:
    """Else two have it: one by the file that was removed, one by the file of now."""
    file = tmp_path / "things/it.lock"
    file.parent.mkdir()
    with file.open("w") as gone:
        fcntl.flock(gone, fcntl.LOCK_EX)
        second = subprocess.Popen(
            agent_words(tmp_path, "hold_lock"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert second.stdin
        assert second.stdout
        second.stdin.write('{"path": "things/it.lock"}\n')
        second.stdin.flush()
        assert answers(second.stdout, 1) == ['tpukit-agent {"waiting": ""}']
        file.unlink()
        with file.open("w") as now:
            now.write("somebody else")
            fcntl.flock(now, fcntl.LOCK_EX)
            now.flush()
            gone.close()
            assert answers(second.stdout, 1) == ['tpukit-agent {"waiting": "somebody else"}']
    assert answers(second.stdout, 1) == ['tpukit-agent {"locked": true}']
    assert file.read_text().startswith("PID ")
    second.stdin.close()
    assert second.wait(60) == 0
    second.stdout.close()
    assert list(file.parent.iterdir()) == []


def answers(stdout: IO[str], count: int) -> list[str]:
    """Return the next answers: each is a line after an empty one."""
    lines = [stdout.readline().rstrip("\n") for _ in range(2 * count)]
    assert lines[::2] == [""] * count
    return lines[1::2]
