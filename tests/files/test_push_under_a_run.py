"""Pushes to an ordinary Ubuntu worker while a program runs in the tree."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.openssh_server import UbuntuServer
from support.processes import eventually
from support.transfer_workers import ByteCounter

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import DeadlinePassed
from tpukit.files.pushes import prepare
from tpukit.files.upload import TransferContext
from tpukit.files.worktree import read_tree
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.worker import RemoteWorker

pytestmark = pytest.mark.process

STEPS = 60
#: It reads itself line by line as it goes, as bash does, and at each step all other files.
SCRIPT = """\
step() {
    read -r _
    for each in data/*; do
        # Opened once: the next one to be opened may be a newer one.
        ends=$(sed -n '1p;$p' "$each" 2>&1 | uniq)
        case $each:$ends in
        data/only-in-*"No such file"* | *:"version "[0-9]) ;;
        *) echo "damaged: $each: $ends" ;;
        esac
    done
    . "./steps/$1" || echo "missing: $1"
}
"""


@pytest.fixture
def context() -> TransferContext:
    return TransferContext(Deadline.never(SystemClock()), ByteCounter())


@pytest.fixture
def worker(ubuntu: UbuntuServer, connector: Connector) -> RemoteWorker:
    def connect() -> Connection:
        return connector.connect(ubuntu.target(), Deadline.after(SystemClock(), 60.0))

    return RemoteWorker(0, connect, "demo")


def write(root: Path, version: int) -> Path:
    """Make the tree of a version; every file of it differs from that of another one."""
    for folder in ("steps", "data"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for old in root.glob("data/only-in-*"):
        old.unlink()
    for number in range(1, STEPS + 1):
        (root / "steps" / str(number)).write_text(f"echo 'step {number} of version {version}'\n")
    for name in (*map(str, range(5)), f"only-in-{version}"):
        (root / "data" / name).write_text(
            f"version {version}\n" + f"{version}\n" * 20_000 + f"version {version}\n"
        )
    steps = "".join(f"step {number}\n" for number in range(1, STEPS + 1))
    (root / "run.sh").write_text("#\n" * 7 * version + SCRIPT + steps + "echo finished\n")
    return root


def pushed(root: Path, worker: RemoteWorker, context: TransferContext) -> str | None:
    (outcome,) = prepare(read_tree(root), "project", [worker], context).send(context)
    assert outcome.error is None, outcome.error.summary()
    return outcome.value


def test_a_script_of_sixty_steps_that_reads_its_own_files_runs_through_two_pushes(
    tmp_path: Path, worker: RemoteWorker, context: TransferContext
) -> None:
    root = tmp_path / "project"
    assert pushed(write(root, 0), worker, context) == "sent"
    output = bytearray()
    allowed = threading.Semaphore(0)

    def reached(steps: int) -> None:
        eventually(lambda: bytes(output).count(b"of version") == steps)

    def stdin() -> Iterator[bytes]:
        for _ in range(STEPS):
            allowed.acquire()
            yield b"go on\n"

    def run() -> None:
        with worker.connect() as connection:
            connection.run(
                "cd project && bash run.sh 2>&1",
                stdin=stdin(),
                on_output=lambda stream, chunk: output.extend(chunk),
                deadline=Deadline.after(SystemClock(), 300.0),
            )

    running = threading.Thread(target=run, daemon=True)
    running.start()
    for version in (1, 2):
        allowed.release(10)
        reached(20 * version - 10)
        pushing = threading.Thread(target=pushed, args=(write(root, version), worker, context))
        pushing.start()
        allowed.release(10)  # during the push
        reached(20 * version)
        pushing.join()
    allowed.release(20)
    running.join(120)
    lines = output.decode().replace("\x1b]0;worker\x07", "").splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert [int(line.split()[1]) for line in steps] == list(range(1, STEPS + 1)), lines
    assert lines[-1] == "finished"
    assert not [line for line in lines if line.startswith(("damaged", "missing"))]
    assert {line.split()[-1] for line in steps[:10]} == {"0"}
    assert {line.split()[-1] for line in steps[20:30]} == {"1"}
    assert {line.split()[-1] for line in steps[40:]} == {"2"}
    assert pushed(root, worker, context) == "unchanged"


class Hurried(SystemClock):
    """A clock on which a quarter of an hour passes in a second."""

    def monotonic(self) -> float:
        return super().monotonic() * 900


def test_a_worker_that_does_not_say_what_it_has_is_given_up(
    tmp_path: Path, ubuntu: UbuntuServer, worker: RemoteWorker, context: TransferContext
) -> None:
    root = write(tmp_path / "project", 0)
    pushed(root, worker, context)
    program = ubuntu.home / "tools/python3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    ubuntu.path = f"{program.parent}:{ubuntu.path}"
    hurried = TransferContext(Deadline.never(Hurried()), ByteCounter())
    (look,) = prepare(read_tree(root), "project", [worker], hurried).looks
    assert isinstance(look.error, DeadlinePassed)
