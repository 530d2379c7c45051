"""The hint of which workers failed never costs a command anything."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tpukit.errors import BadInput
from tpukit.remote.connection.target import Target
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.work.failed_workers import FailedWorkers

PLACE = ("https://tpu.googleapis.com/", "project")


def worker(index: int = 0, name: str = "demo", zone: str = "z-a") -> RemoteWorker:
    target = Target(f"{name} worker {index}", index, "192.0.2.1", 22, "ada", (), zone=zone)
    return RemoteWorker(index, lambda: pytest.fail("nobody connects"), name, target)


def test_who_failed_is_remembered_by_api_project_zone_and_name(tmp_path: Path) -> None:
    memory = FailedWorkers(tmp_path / "state" / "last", PLACE)
    memory.remember([worker(0), worker(1)], [worker(1)])
    assert memory.among([worker(0), worker(1)])[0].index == 1
    elsewhere = (
        (memory, worker(1, zone="z-b")),
        (memory, worker(1, "other")),
        (FailedWorkers(tmp_path / "state" / "last", (PLACE[0], "another")), worker(1)),
        (FailedWorkers(tmp_path / "state" / "last", ("http://127.0.0.1/", PLACE[1])), worker(1)),
    )
    for other, candidate in elsewhere:
        with pytest.raises(BadInput, match="failed on no worker"):
            other.among([candidate])


def test_many_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    def write(number: int) -> None:
        memory = FailedWorkers(tmp_path / "last", PLACE)
        for _ in range(20):
            memory.remember([worker(name=f"s{number}")], [worker(name=f"s{number}")])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    memory = FailedWorkers(tmp_path / "last", PLACE)
    assert len(memory.among([worker(name=f"s{number}") for number in range(8)])) == 8


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', "[" * 100_000, "\x00"])
def test_a_file_of_another_shape_is_written_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "last").write_text(text)
    memory = FailedWorkers(tmp_path / "last", PLACE)
    memory.remember([worker()], [worker()])
    assert len(memory.among([worker()])) == 1


FULL = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from work.test_failed_workers import PLACE, FailedWorkers, worker
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
FailedWorkers(Path(sys.argv[1]), PLACE).remember([worker()], [worker()])
"""


def test_a_disk_without_room_fails_no_command(tmp_path: Path) -> None:
    """A process that may write no byte into any file has EFBIG where a full disk has ENOSPC."""
    words = [sys.executable, "-c", FULL, str(tmp_path / "last"), str(Path(__file__).parents[1])]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "last").exists()


def test_a_place_that_cannot_be_written_fails_no_command(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    FailedWorkers(blocker / "last", PLACE).remember([worker()], [worker()])
