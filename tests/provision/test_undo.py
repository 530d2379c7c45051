"""What is undone, in which order, and by which facts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.local_worker import LocalWorker, seconds

from provision.test_step_programs import PROGRAM, step
from tpukit.jobs.detached_job import DetachedJob, JobRequest
from tpukit.provision.undo import undo_all
from tpukit.provision.worker_jobs import ProvisionEvent
from tpukit.text import quote

pytestmark = pytest.mark.process


@pytest.fixture
def worker(tmp_path: Path) -> LocalWorker:
    (tmp_path / "home").mkdir()
    return LocalWorker(tmp_path / "home")


def test_changes_are_undone_from_the_last_to_the_first(worker: LocalWorker) -> None:
    """A later step may stand on an earlier one: each folder lies in the one before."""
    place = worker.home
    for name in ("limits", "apt", "shell"):  # no order of the alphabet
        place /= name
        assert step(worker.home, f"put_folder(ledger, {str(place)!r})", name).returncode == 0
    (report,) = undo_all([worker.remote()], [], deadline=seconds(120))
    assert (report.undone, report.error) == (("shell", "apt", "limits"), "")
    assert not (worker.home / "limits").exists()


def test_an_undo_that_fails_leaves_the_changes_before_it(worker: LocalWorker) -> None:
    first, obstacle = worker.home / "first", worker.home / "obstacle"
    step(worker.home, f"put_folder(ledger, {str(first)!r})", "limits")
    step(worker.home, f"ledger.note('take_file', {str(obstacle)!r})")
    obstacle.mkdir()
    (report,) = undo_all([worker.remote()], [], deadline=seconds(120))
    assert report.undone == ()
    assert "step shell: " in report.error
    assert first.exists()


def test_what_a_job_brought_while_undo_waited_for_it_is_undone_too(worker: LocalWorker) -> None:
    """The client that began the job is gone: the worker's facts change until the job ends."""
    go_on, brought = worker.home.parent / "go-on", worker.home / "brought"
    change = quote([sys.executable, "-c", f"{PROGRAM}    put_folder(ledger, {str(brought)!r})\n"])
    waits = f"until [ -e {go_on} ]; do sleep 0.02; done\n{change} shell"
    job = DetachedJob(worker.remote().connect, "provision-shell-0123456789ab-0", seconds(120))
    job.start(JobRequest(waits))

    def release(event: ProvisionEvent) -> None:
        if event.step == "wait":
            assert not (worker.home / ".tpukit/ledger").exists()
            go_on.touch()

    (report,) = undo_all([worker.remote()], [], deadline=seconds(120), on_event=release)
    assert (report.undone, report.error) == (("shell",), "")
    assert not brought.exists()
