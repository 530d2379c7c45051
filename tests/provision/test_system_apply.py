"""System steps of several clients on one worker: one at a time changes it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.local_worker import LocalWorker, seconds

from tpukit.cli.views import provision_views
from tpukit.errors import ProvisionFailed
from tpukit.provision.apply import require_provisioned
from tpukit.provision.provision_report import ProvisionReport
from tpukit.provision.provisioning import provision_all
from tpukit.provision.system_apply import read_plan
from tpukit.provision.system_steps import named, parse, step_names
from tpukit.provision.undo import undo_all
from tpukit.provision.wanted import Wanted
from tpukit.provision.worker_jobs import ProvisionEvent, WorkerJobs

pytestmark = pytest.mark.process


@pytest.fixture
def worker(tmp_path: Path) -> LocalWorker:
    (tmp_path / "home").mkdir()
    return LocalWorker(tmp_path / "home")


@pytest.fixture
def dotfiles(tmp_path: Path) -> Wanted:
    """A step that needs no root: settings in a repository of this machine."""
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / ".vimrc").write_text("set mine\n")
    git = ("git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.com")
    for line in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run([*git, *line], check=True)
    return Wanted((parse(f"dotfiles=file://{folder}"),), ())


@contextmanager
def held(worker: LocalWorker) -> Iterator[threading.Event]:
    """Let another client provision the worker until the event that is yielded is set."""
    over, begun = threading.Event(), threading.Event()

    def hold() -> None:
        with WorkerJobs(worker.remote(), seconds(120), lambda event: None).alone():
            begun.set()
            over.wait(120)

    holder = threading.Thread(target=hold)
    holder.start()
    assert begun.wait(60)
    yield over
    holder.join(120)


def test_every_step_says_how_it_stands_on_this_machine(worker: LocalWorker) -> None:
    """A step that fails to look would hide what the others need."""
    steps = [parse(named(name).example or name) for name in step_names()]
    plan = read_plan([worker.remote()], steps, seconds(60))
    (facts,) = plan.facts.values()
    assert facts.steps.keys() == {step.word for step in steps}
    for word, fact in facts.steps.items():
        assert fact.needed or fact.refused or fact.notes or word == "limits", word


def test_of_two_clients_that_plan_the_same_one_does_it_and_undo_waits_for_both(
    worker: LocalWorker, dotfiles: Wanted
) -> None:
    """Both have seen that it is needed before either begins."""
    reports: list[ProvisionReport] = []
    planned = threading.Barrier(2, timeout=60)

    def apply() -> None:
        reports.append(
            provision_all([worker.remote()], dotfiles, deadline=seconds(120), prepare=planned.wait)
        )

    clients = [threading.Thread(target=apply) for _ in range(2)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(120)
    assert [report.ok for report in reports] == [True, True]
    assert sorted(report.changes for report in reports) == [0, 1]
    assert (worker.home / ".vimrc").read_text() == "set mine\n"

    # Nobody's things are taken away while somebody else brings them.
    waits: list[tuple[str, bool]] = []
    (word,) = (step.word for step in dotfiles.steps)
    with held(worker) as over:

        def release(event: ProvisionEvent) -> None:
            if event.step == "wait":
                waits.append((event.text, (worker.home / ".vimrc").exists()))
                over.set()

        (report,) = undo_all([worker.remote()], [word], deadline=seconds(120), on_event=release)
    (wait,) = waits
    assert wait[0].startswith("another client provisions it: PID ")
    assert wait[1]
    assert report.undone == (word,)
    assert list(worker.home.iterdir()) == []


def test_workers_of_one_number_in_two_slices_are_two(tmp_path: Path, dotfiles: Wanted) -> None:
    """Worker 0 of each slice of a multislice has facts, changes and a name of its own."""
    homes = [tmp_path / name for name in ("first", "second")]
    for home in homes:
        home.mkdir()
    pair = [
        replace(LocalWorker(home).remote(), slice=f"pair-{at}", slice_index=at, slices=2)
        for at, home in enumerate(homes)
    ]
    (homes[1] / ".dotfiles").write_text("somebody's\n")
    with pytest.raises(ProvisionFailed) as caught:
        provision_all(pair, dotfiles, deadline=seconds(120))
    assert caught.value.reason.endswith(", pair-1 worker 0")
    (homes[1] / ".dotfiles").unlink()
    assert provision_all(pair[:1], dotfiles, deadline=seconds(120)).changes == 1
    report = provision_all(pair, dotfiles, deadline=seconds(120))
    assert [(remote.slice, remote.changes) for remote in report.workers] == [
        ("pair-0", 0),
        ("pair-1", 1),
    ]
    assert all((home / ".vimrc").exists() for home in homes)
    view = provision_views.provision(report)
    assert view.columns[:2] == ("SLICE", "WORKER")
    assert [row[:2] for row in view.rows] == [["pair-0", 0], ["pair-1", 0]]
    failed = [report.workers[0], replace(report.workers[1], error="no way")]
    with pytest.raises(ProvisionFailed, match=r"failed on pair-1 worker 0$"):
        require_provisioned(replace(report, workers=tuple(failed)))


def test_a_step_that_has_become_impossible_while_it_was_waited_for_is_refused(
    worker: LocalWorker, dotfiles: Wanted
) -> None:
    with held(worker) as over:

        def obstruct(event: ProvisionEvent) -> None:
            if event.step == "wait":
                (worker.home / ".dotfiles").write_text("somebody's\n")
                over.set()

        (report,) = provision_all(
            [worker.remote()], dotfiles, deadline=seconds(120), on_event=obstruct
        ).workers
    assert ".dotfiles" in report.error
    assert [step.outcome for step in report.steps] == ["failed"]
    assert (worker.home / ".dotfiles").read_text() == "somebody's\n"
