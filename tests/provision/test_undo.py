"""What is undone, in which order, and by which facts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.local_worker import LocalWorker, seconds

from provision.test_step_programs import COMMON, sh
from tpukit.provision.undo import undo_all
from tpukit.provision.worker_jobs import ProvisionEvent
from tpukit.remote.job.detached_job import DetachedJob, JobRequest

pytestmark = pytest.mark.process


@pytest.fixture
def worker(tmp_path: Path) -> LocalWorker:
    (tmp_path / "home").mkdir()
    return LocalWorker(tmp_path / "home")


def test_changes_are_undone_from_the_last_to_the_first(worker: LocalWorker) -> None:
    """A later step may stand on an earlier one: its undo needs what the earlier one brought."""
    order = worker.home.parent / "order"
    for step in ("limits", "apt", "shell"):  # no order of the alphabet
        assert sh(worker.home, f"note sh -c 'echo {step} >>{order}'", step).returncode == 0
    (report,) = undo_all([worker.remote()], [], deadline=seconds(120))
    assert (report.undone, report.error) == (("shell", "apt", "limits"), "")
    assert order.read_text().split() == ["shell", "apt", "limits"]


def test_an_undo_that_fails_leaves_the_changes_before_it(worker: LocalWorker) -> None:
    sh(worker.home, "note touch first-was-undone", "limits")
    sh(worker.home, "note false", "shell")
    (report,) = undo_all([worker.remote()], [], deadline=seconds(120))
    assert report.undone == ()
    assert "step shell: " in report.error
    assert not (worker.home / "first-was-undone").exists()


def test_what_a_job_brought_while_undo_waited_for_it_is_undone_too(worker: LocalWorker) -> None:
    """The client that began the job is gone: the worker's facts change until the job ends."""
    go_on, undone = worker.home.parent / "go-on", worker.home.parent / "undone"
    change = f"{COMMON}\nbegin shell shell '' 0\nnote touch {undone}"
    waits = f"until [ -e {go_on} ]; do sleep 0.02; done\n{change}"
    job = DetachedJob(worker.remote().connect, "provision-shell-0123456789ab-0", seconds(120))
    job.start(JobRequest(waits))

    def release(event: ProvisionEvent) -> None:
        if event.step == "wait":
            assert not (worker.home / ".tpukit/ledger").exists()
            go_on.touch()

    (report,) = undo_all([worker.remote()], [], deadline=seconds(120), on_event=release)
    assert (report.undone, report.error) == (("shell",), "")
    assert undone.exists()
