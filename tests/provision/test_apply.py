"""Provisioning for real: real uv, real packages from the index, in private home folders."""

from __future__ import annotations

import os
import shutil
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from emulator.crew import eventually
from remote.clocks import HandClock

from tpukit.clock import SystemClock
from tpukit.errors import TransportFailed
from tpukit.provision.apply import ProvisionEvent, provision
from tpukit.provision.recipes import UV_VERSION, Package, Recipe, Release
from tpukit.remote.worker import RemoteWorker

from .local import LocalConnection, LocalWorker, seconds

EMULATED = {"TPUKIT_EMULATED_DEVICES": "8"}
CLOCK = SystemClock()


def small_recipe(*packages: str, modules: tuple[str, ...] = ("iniconfig",)) -> Recipe:
    """A recipe of small packages, for all that does not depend on a framework."""
    parsed = tuple(map(Package.parse, packages))
    pythons = ("3.11", "3.12", "3.13", "3.14")
    release = Release(pythons, parsed, parsed, 50, 50, ())
    return Recipe("small", "for tests", modules, "3.12", "2.17", "x86_64", (release,))


SMALL = small_recipe("iniconfig==2.0.0")


@pytest.fixture(scope="module")
def uv(tmp_path_factory) -> Path:
    """The folder of a uv that provisioning itself has installed."""
    home = tmp_path_factory.mktemp("uv")
    assert apply(LocalWorker(home, environment=EMULATED).remote()).ok
    return home / f".tpukit/uv-{UV_VERSION}"


@pytest.fixture
def worker(tmp_path, uv):
    """An emulated worker that has uv and nothing else."""
    shutil.copytree(uv, tmp_path / ".tpukit" / uv.name, copy_function=os.link)
    return LocalWorker(tmp_path, environment=EMULATED)


def apply(*workers: RemoteWorker, recipe=SMALL, requirements=None, clock=CLOCK, on_event=None):
    return provision(
        workers,
        recipe,
        requirements=requirements,
        clock=clock,
        deadline=seconds(500, clock),
        on_event=on_event or (lambda event: None),
    )


def outcomes(report) -> dict[str, str]:
    return {step.name: step.outcome for step in report.steps}


def installed(home: Path) -> set[str]:
    found = home.glob(".tpukit/venvs/small/lib/python*/site-packages/*.dist-info")
    return {path.name.removesuffix(".dist-info") for path in found}


def ended_jobs(home: Path) -> list[str]:
    return sorted(path.parent.name for path in home.glob(".tpukit/jobs/*/status"))


def test_the_first_run_makes_everything_and_the_second_changes_nothing(tmp_path):
    worker = LocalWorker(tmp_path, environment=EMULATED)
    first = apply(worker.remote())
    (report,) = first.workers
    assert (report.error, first.ok) == ("", True)
    assert report.emulated
    assert report.python == f"{worker.home}/.tpukit/venvs/small/bin/python"
    assert outcomes(report) == {
        "system": "unchanged",
        "disk": "unchanged",
        "uv": "changed",
        "python": "unchanged",
        "venv": "changed",
        "packages": "changed",
        "requirements": "unchanged",
        "verify": "changed",
    }
    worker.commands.clear()
    second = apply(worker.remote())
    assert second.ok
    assert second.changes == 0
    assert len(worker.commands) == 1, "the facts are all that a second run asks for"


def test_each_step_tells_when_it_starts_what_it_says_and_when_it_ends(worker):
    events: list[ProvisionEvent] = []
    apply(worker.remote(), on_event=events.append)
    venv = [event for event in events if event.step == "venv"]
    assert [venv[0].kind, venv[-1].kind] == ["started", "finished"]
    assert any(event.kind == "line" and "virtual environment" in event.text for event in venv)
    assert venv[-1].text.startswith("changed: ")


def test_requirements_come_on_top_and_only_once(worker):
    wanted = b"sortedcontainers==2.4.0\n"
    assert apply(worker.remote(), requirements=wanted).ok
    assert {"iniconfig-2.0.0", "sortedcontainers-2.4.0"} <= installed(worker.home)
    assert apply(worker.remote(), requirements=wanted).changes == 0


def test_requirements_cannot_change_a_pinned_package(worker):
    (report,) = apply(worker.remote(), requirements=b"iniconfig==1.1.1\n").workers
    assert report.error.startswith("step requirements: a command ended with status 1")
    assert "iniconfig-2.0.0" in installed(worker.home)
    assert any("iniconfig==1.1.1" in line for line in report.log_tail)


def test_a_package_that_was_changed_by_hand_is_put_right(worker):
    apply(worker.remote())
    installer = f".tpukit/uv-{UV_VERSION}/bin/uv"
    python = ".tpukit/venvs/small/bin/python"
    LocalConnection(worker).run(
        f"{installer} pip install --python {python} iniconfig==1.1.1", deadline=seconds(300)
    )
    (report,) = apply(worker.remote()).workers
    assert outcomes(report)["packages"] == outcomes(report)["verify"] == "changed"
    assert "iniconfig-2.0.0" in installed(worker.home)


def test_a_failed_step_is_named_with_the_end_of_its_log_and_is_tried_anew(worker):
    broken = small_recipe("iniconfig==99.0.0")
    (report,) = apply(worker.remote(), recipe=broken).workers
    assert report.error.startswith("step packages: a command ended with status 1 (missing:")
    assert outcomes(report)["packages"] == "failed"
    assert "verify" not in outcomes(report)
    assert 0 < len(report.log_tail) <= 15
    assert any("iniconfig==99.0.0" in line for line in report.log_tail)
    log = Path(report.log_path.replace("~", str(worker.home)))
    assert "iniconfig" in log.read_text()
    apply(worker.remote(), recipe=broken)
    attempts = [job for job in ended_jobs(worker.home) if job.startswith("provision-packages")]
    assert [attempt[-2:] for attempt in attempts] == ["-0", "-1"]


def test_with_the_package_index_down_nothing_counts_as_installed_and_later_all_is(worker):
    down = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    usual = worker.environment
    worker.environment = {**usual, **down, "UV_CACHE_DIR": str(worker.home / "empty")}
    (report,) = apply(worker.remote()).workers
    assert report.error.startswith("step packages: ")
    assert any("127.0.0.1" in line for line in report.log_tail)
    worker.environment = usual
    (report,) = apply(worker.remote()).workers
    assert (report.error, outcomes(report)["verify"]) == ("", "changed")


def test_a_framework_that_cannot_be_imported_is_not_verified(worker):
    broken = replace(SMALL, modules=("iniconfig", "nothing_of_this_name"))
    (report,) = apply(worker.remote(), recipe=broken).workers
    assert report.error.startswith("step verify: ")
    assert "nothing_of_this_name" in report.log_tail[-1]
    assert not (worker.home / ".tpukit/venvs/small/tpukit-verified").exists()


def test_a_tpu_vm_without_the_drivers_library_is_not_verified(worker):
    del worker.environment["TPUKIT_EMULATED_DEVICES"]
    worker.environment["UV_FIND_LINKS"] = str(worker.home)
    with zipfile.ZipFile(worker.home / "libtpu-0.0.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("libtpu/__init__.py", "def get_library_path(): return '/none/libtpu.so'\n")
        about = "libtpu-0.0.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: libtpu\nVersion: 0.0.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    recipe = small_recipe("libtpu==0.0.0", modules=("sys",))
    (report,) = apply(worker.remote(), recipe=recipe).workers
    assert report.error.startswith("step verify: ")
    assert "/none/libtpu.so" in report.log_tail[-1]
    assert not report.emulated


def test_a_worker_that_cannot_be_reached_does_not_stop_the_others(worker, tmp_path):
    def refuse():
        raise TransportFailed("no answer from worker 1", reason="connection refused")

    report = apply(worker.remote(), RemoteWorker(1, refuse))
    assert [each.ok for each in report.workers] == [True, False]
    assert report.workers[1].error == "no answer from worker 1 (connection refused)"
    assert not report.ok


def test_a_broken_environment_is_made_anew(worker):
    apply(worker.remote())
    (worker.home / ".tpukit/venvs/small/bin/python").unlink()
    (report,) = apply(worker.remote()).workers
    assert report.ok
    assert outcomes(report)["venv"] == "changed"


class FlakyConnection(LocalConnection):
    """Loses the connection right after every third command has run."""

    calls = 0

    def run(self, command, **options):
        done = super().run(command, **options)
        FlakyConnection.calls += 1
        if FlakyConnection.calls % 3 == 0:
            raise TransportFailed("the connection broke")
        return done


def test_connections_that_break_repeat_no_job(worker):
    FlakyConnection.calls = 0
    (report,) = apply(RemoteWorker(0, lambda: FlakyConnection(worker))).workers
    assert report.error == ""
    assert FlakyConnection.calls > 12
    assert all(job.endswith("-0") for job in ended_jobs(worker.home))


def test_typed_again_after_the_deadline_it_follows_the_job_that_still_runs(worker, uv):
    released, starts = worker.home / "released", worker.home / "starts"
    slow = worker.home / f".tpukit/uv-{UV_VERSION}/bin/uv"
    slow.unlink()
    slow.write_text(
        f'#!/bin/sh\n[ "$3" = venv ] || exec {uv}/bin/uv "$@"\n'
        f"echo once >>{starts}\nwhile [ ! -e {released} ]; do sleep 0.1; done\n"
        f'exec {uv}/bin/uv "$@"\n'
    )
    slow.chmod(0o755)
    clock = HandClock()

    def pass_time() -> None:
        """Let the deadline pass once the job has begun."""
        assert eventually(lambda: starts.exists() and starts.read_text())
        clock.advance(500)

    passing = threading.Thread(target=pass_time)
    passing.start()
    (report,) = apply(worker.remote(), clock=clock).workers
    passing.join()
    assert report.error.startswith("step venv: ")
    assert "did not end in time" in report.error
    followed: list[ProvisionEvent] = []

    def release_once_followed(event: ProvisionEvent) -> None:
        followed.append(event)
        if (event.step, event.kind) == ("venv", "started"):
            released.touch()

    assert apply(worker.remote(), on_event=release_once_followed).ok
    assert starts.read_text() == "once\n"
