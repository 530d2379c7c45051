"""Provisioning for real: real uv, real packages from the index, in private home folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.clocks import HandClock
from support.failing_workers import check_decisive_class
from support.local_worker import LocalConnection, LocalWorker, seconds
from support.small_recipe import SMALL, small_recipe

from tpukit.clock import SystemClock
from tpukit.errors import DeadlinePassed, ProvisionFailed, TpukitError, TransportFailed
from tpukit.jobs.detached_job import DetachedJob, JobRequest
from tpukit.provision.apply import require_provisioned
from tpukit.provision.provision_report import ProvisionReport
from tpukit.provision.provisioning import plan_all, provision_all, status_all
from tpukit.provision.recipes import Recipe, uv_requirement
from tpukit.provision.requirements import ROOT, Requirements
from tpukit.provision.system_steps import parse
from tpukit.provision.undo import require_undone, undo_all
from tpukit.provision.wanted import Wanted
from tpukit.provision.worker_jobs import ProvisionEvent
from tpukit.ssh.programs import program_text
from tpukit.ssh.worker import RemoteWorker
from tpukit.ssh.worker_files import COMPILATION_CACHE, UV_VERSION

pytestmark = pytest.mark.process

EMULATED = {"TPUKIT_EMULATED_DEVICES": "8"}
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, ProvisionReport]:
    """The home of a worker where nothing was, and the report on its first run."""
    home = tmp_path_factory.mktemp("first")
    return home, apply(LocalWorker(home, environment=EMULATED).remote())


@pytest.fixture(scope="module")
def uv(first) -> Path:
    """The folder of a uv that provisioning itself has installed."""
    return first[0] / f".tpukit/uv-{UV_VERSION}"


@pytest.fixture
def worker(tmp_path, uv):
    """An emulated worker that has uv and nothing else."""
    shutil.copytree(uv, tmp_path / ".tpukit" / uv.name, copy_function=os.link)
    return LocalWorker(tmp_path, environment=EMULATED)


@pytest.fixture
def provisioned(tmp_path, first):
    """An emulated worker after its first run."""
    shutil.copytree(first[0], tmp_path, copy_function=os.link, symlinks=True, dirs_exist_ok=True)
    return LocalWorker(tmp_path, environment=EMULATED)


def apply(*workers: RemoteWorker, recipe=SMALL, requirements=None, clock=CLOCK, on_event=None):
    on_top = Requirements({ROOT: requirements}) if isinstance(requirements, bytes) else requirements
    return provision_all(
        workers,
        Wanted((), (recipe,)),
        requirements=on_top,
        deadline=seconds(500, clock),
        on_event=on_event or (lambda event: None),
    )


def outcomes(report) -> dict[str, str]:
    return {step.name: step.outcome for step in report.steps}


def installed(home: Path) -> set[str]:
    glob = home.glob(".tpukit/venvs/small/lib/python*/site-packages/*.dist-info")
    return {path.name.removesuffix(".dist-info") for path in glob}


def ended_jobs(home: Path) -> list[str]:
    return sorted(path.parent.name for path in home.glob(".tpukit/jobs/*/status"))


def test_the_first_run_makes_everything(first):
    home, report = first[0], first[1].workers[0]
    assert (report.error, report.ok) == ("", True)
    assert report.emulated
    assert report.python == f"{home}/.tpukit/venvs/small/bin/python"
    assert outcomes(report) == {
        "system": "unchanged",
        "disk": "unchanged",
        "uv": "changed",
        "python": "unchanged",
        "venv": "changed",
        "packages": "changed",
        "requirements": "unchanged",
        "variables": "unchanged",
        "verify": "changed",
    }


def test_the_second_run_asks_for_the_facts_and_changes_nothing(provisioned):
    report = apply(provisioned.remote())
    assert report.ok
    assert report.changes == 0
    assert len(provisioned.commands) == 1


def test_a_second_run_of_everything_is_one_look_at_each_worker(provisioned, tmp_path):
    """System steps and several recipes: one connection and one program, whatever they are."""
    settings = tmp_path / "settings"
    subprocess.run(["git", "init", "-q", settings], check=True)
    (settings / ".vimrc").write_text("set mine\n")
    git = ("git", "-C", settings, "-c", "user.name=x", "-c", "user.email=x@example.com")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    everything = Wanted((parse(f"dotfiles=file://{settings}"),), (SMALL, SMALL))
    connected: list[str] = []

    def connect():
        connected.append("")
        return LocalConnection(provisioned)

    worker = replace(provisioned.remote(), connect=connect)
    assert provision_all([worker], everything, deadline=seconds(500)).changes == 1
    for look in (provision_all, plan_all):
        connected.clear()
        provisioned.commands.clear()
        found = look([worker], everything, deadline=seconds(500))
        report = found.workers[0] if look is provision_all else found[0]
        assert ({step.outcome for step in report.steps}, report.changes) == ({"unchanged"}, 0)
        assert (len(connected), len(provisioned.commands)) == (1, 1), look
        assert "small:packages" in {step.name for step in report.steps}
    connected.clear()
    (status,) = status_all([worker], deadline=seconds(500))
    assert (len(connected), len(status.ledgers), len(status.environments)) == (2, 1, 1)


def test_room_for_all_recipes_is_looked_for_before_any_is_brought(worker):
    """Alone on a worker that has room for each, or after system steps: nothing is changed."""
    large = [
        replace(
            SMALL, name=name, releases=(replace(SMALL.releases[0], stand_in_disk_megabytes=part),)
        )
        for part in (shutil.disk_usage(worker.home).free // 1_500_000,)
        for name in ("one", "other")
    ]
    recipes = Wanted((), tuple(large))
    plan_all([worker.remote()], recipes, deadline=seconds(60))  # this brings the agent
    before = contents(worker.home)
    (report,) = provision_all([worker.remote()], recipes, deadline=seconds(500)).workers
    assert re.match(
        "one and other need [0-9]+ MB of disk, but only [0-9]+ MB are free", report.error
    )
    after = replace(recipes, steps=(parse("dotfiles=file:///nowhere"),))
    with pytest.raises(ProvisionFailed, match="one and other need") as caught:
        provision_all([worker.remote()], after, deadline=seconds(500))
    assert (caught.value.why, "worker 0" in caught.value.reason) == ("nothing was changed", True)
    assert contents(worker.home) == before


def contents(home: Path) -> list[Path]:
    """Return all files there, without those that Python compiles when the agent needs them."""
    return sorted(path for path in home.rglob("*") if path.suffix != ".pyc")


@pytest.mark.journey
def test_each_step_tells_when_it_starts_what_it_says_and_when_it_ends(worker):
    events: list[ProvisionEvent] = []
    apply(worker.remote(), on_event=events.append)
    venv = [event for event in events if event.step == "venv"]
    assert [venv[0].kind, venv[-1].kind] == ["started", "finished"]
    assert any(event.kind == "line" and "virtual environment" in event.text for event in venv)
    assert venv[-1].text.startswith("changed: ")


def test_requirements_come_on_top_and_only_once(provisioned):
    wanted = b"sortedcontainers==2.4.0\n"
    assert apply(provisioned.remote(), requirements=wanted).ok
    assert {"iniconfig-2.0.0", "sortedcontainers-2.4.0"} <= installed(provisioned.home)
    assert apply(provisioned.remote(), requirements=wanted).changes == 0


def test_requirements_cannot_change_a_pinned_package(provisioned):
    (report,) = apply(provisioned.remote(), requirements=b"iniconfig==1.1.1\n").workers
    assert report.error.startswith("step requirements: a command ended with status 1")
    assert "iniconfig-2.0.0" in installed(provisioned.home)
    assert any("iniconfig==1.1.1" in line for line in report.log_tail)


def test_a_package_that_was_changed_by_hand_is_put_right(provisioned):
    installer = f".tpukit/uv-{UV_VERSION}/bin/uv"
    python = ".tpukit/venvs/small/bin/python"
    LocalConnection(provisioned).run(
        f"{installer} pip install --python {python} iniconfig==1.1.1", deadline=seconds(300)
    )
    (report,) = apply(provisioned.remote()).workers
    assert outcomes(report)["packages"] == outcomes(report)["verify"] == "changed"
    assert "iniconfig-2.0.0" in installed(provisioned.home)


def test_a_failed_step_is_named_with_the_end_of_its_log_and_is_tried_anew(provisioned):
    broken = small_recipe("iniconfig==99.0.0")
    before = ended_jobs(provisioned.home)
    (report,) = apply(provisioned.remote(), recipe=broken).workers
    assert report.error.startswith("step packages: the package index has no such package")
    assert outcomes(report)["packages"] == "failed"
    assert "verify" not in outcomes(report)
    assert 0 < len(report.log_tail) <= 15
    assert any("iniconfig==99.0.0" in line for line in report.log_tail)
    log = Path(report.log_path.replace("~", str(provisioned.home)))
    assert "iniconfig" in log.read_text()
    apply(provisioned.remote(), recipe=broken)
    attempts = [job for job in ended_jobs(provisioned.home) if job not in before]
    assert [attempt[-2:] for attempt in attempts] == ["-0", "-1"]


def test_with_the_package_index_down_nothing_counts_as_installed_and_later_all_is(worker):
    down = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    usual = worker.environment
    worker.environment = {**usual, **down, "UV_CACHE_DIR": str(worker.home / "empty")}
    (report,) = apply(worker.remote()).workers
    assert report.error == "step packages: the worker could not reach the package index"
    with pytest.raises(ProvisionFailed) as caught:
        require_provisioned(ProvisionReport("small", (report,)))
    assert "Cloud NAT" in str(caught.value.fix)
    assert any("127.0.0.1" in line for line in report.log_tail)
    worker.environment = usual
    (report,) = apply(worker.remote()).workers
    assert (report.error, outcomes(report)["verify"]) == ("", "changed")


class Locked(Recipe):
    """A recipe whose lock has one package, and that with a hash of the test's."""

    def lock_text(self, python: str, emulated: bool) -> str:
        return f"# for tests\niniconfig==2.0.0 --hash=sha256:{self.description}\n"


@pytest.mark.journey
def test_a_file_is_installed_only_where_it_has_the_hash_that_the_lock_names(worker):
    """The hash of iniconfig-2.0.0-py3-none-any.whl, and another."""
    right = "b6a85871a79d2e3b22d2d1b94ac2824226a63c6b741c88f7ae975f18b6778374"
    for digest in ("0" * 64, right):
        recipe = Locked(**{**vars(SMALL), "description": digest})
        (report,) = apply(worker.remote(), recipe=recipe).workers
        if digest == right:
            assert (report.error, installed(worker.home)) == ("", {"iniconfig-2.0.0"})
        else:
            assert "a file of the package index is not the one in the lock" in report.error
            assert installed(worker.home) == set()
    assert apply(worker.remote(), recipe=recipe).changes == 0


def test_a_framework_that_cannot_be_imported_is_not_verified(provisioned):
    mark = provisioned.home / ".tpukit/venvs/small/tpukit-verified"
    mark.unlink()
    broken = replace(SMALL, modules=("iniconfig", "nothing_of_this_name"))
    (report,) = apply(provisioned.remote(), recipe=broken).workers
    assert report.error.startswith("step verify: ")
    assert "nothing_of_this_name" in report.log_tail[-1]
    assert not mark.exists()


def test_a_tpu_vm_without_the_drivers_library_is_not_verified(provisioned):
    del provisioned.environment["TPUKIT_EMULATED_DEVICES"]
    provisioned.environment["UV_FIND_LINKS"] = str(provisioned.home)
    with zipfile.ZipFile(provisioned.home / "libtpu-0.0.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("libtpu/__init__.py", "def get_library_path(): return '/none/libtpu.so'\n")
        about = "libtpu-0.0.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: libtpu\nVersion: 0.0.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    recipe = small_recipe("libtpu==0.0.0", modules=("sys",))
    (report,) = apply(provisioned.remote(), recipe=recipe).workers
    assert report.error.startswith("step verify: ")
    assert "/none/libtpu.so" in report.log_tail[-1]
    assert not report.emulated


def refuse():
    raise TransportFailed("no answer from worker 1", reason="connection refused")


def test_a_worker_that_cannot_be_reached_does_not_stop_the_others(provisioned):
    report = apply(provisioned.remote(), RemoteWorker(1, refuse))
    assert [remote.ok for remote in report.workers] == [True, False]
    assert report.workers[1].error == "no answer from worker 1 (connection refused)"
    assert not report.ok


def test_a_broken_environment_is_made_anew(provisioned):
    (provisioned.home / ".tpukit/venvs/small/bin/python").unlink()
    (report,) = apply(provisioned.remote()).workers
    assert report.ok
    assert outcomes(report)["venv"] == "changed"


def ensure(*workers: RemoteWorker, clock=CLOCK, **given):
    small = Wanted((), (SMALL,))
    return require_provisioned(provision_all(workers, small, deadline=seconds(500, clock), **given))


def test_provisioning_keeps_the_class_of_the_error_that_decides():
    check_decisive_class(ensure, "provisioning failed")


def test_a_step_that_fails_is_a_failed_provisioning_with_the_end_of_its_log(worker):
    worker.environment |= {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(worker.home / "empty")}
    with pytest.raises(ProvisionFailed, match="failed on worker 0") as caught:
        ensure(worker.remote())
    assert caught.value.why.startswith("step packages: a command ended with status")
    assert "iniconfig" in caught.value.why.partition("\n")[2]
    assert caught.value.fix
    assert caught.value.fix.note.startswith("read the whole log on the worker: ~/.tpukit/jobs/")
    assert caught.value.fix.note.endswith(
        "fix the cause and run the same command again: it continues"
    )
    assert caught.value.details["workers"][0]["ok"] is False


def test_packages_that_a_dead_installer_has_half_written_are_installed_again(provisioned):
    """It looks installed and verified; the mark that the installer left is all there is to see."""
    (package,) = provisioned.home.glob(".tpukit/venvs/small/lib/python*/site-packages/iniconfig")
    shutil.rmtree(package)
    (provisioned.home / ".tpukit/venvs/small/tpukit-installing").touch()
    (report,) = apply(provisioned.remote()).workers
    assert report.error == ""
    assert (package / "__init__.py").exists()
    assert apply(provisioned.remote()).changes == 0


def test_what_a_client_that_is_gone_still_installs_is_no_installation_that_was_cut_off(provisioned):
    """All packages were installed again beside it."""
    mark = provisioned.home / ".tpukit/venvs/small/tpukit-installing"
    mark.touch()
    remote, go_on = provisioned.remote(), provisioned.home / "go-on"
    left = DetachedJob(remote.connect, "provision-requirements-0123-0", seconds(60))
    left.start(JobRequest(f"while ! [ -e {go_on} ]; do sleep 0.05; done; rm {mark}"))
    waits: list[str] = []

    def release_once_it_waits(event: ProvisionEvent) -> None:
        if event.step == "wait":
            waits.append(event.text)
            go_on.touch()

    assert apply(remote, on_event=release_once_it_waits).changes == 0
    assert re.fullmatch(
        r"provision-requirements-0123-0 still runs; its client is gone", "".join(waits)
    )


def test_two_installers_of_uv_at_once_and_a_dead_one_before_them_leave_one_that_works(tmp_path, uv):
    """pip is a script that waits until both have begun: each has a folder of its own."""
    folder, begun = tmp_path / f"uv-{UV_VERSION}", tmp_path / "begun"
    (tmp_path / f"{folder.name}.partial.99999999/uv").mkdir(parents=True)
    begun.mkdir()
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$3" = pip ] || exec {sys.executable} "$@"\n'
        f"touch {begun}/$$\nwhile [ $(ls {begun} | wc -l) -lt 2 ]; do sleep 0.05; done\n"
        f'for last; do [ "$before" = --target ] && into=$last; before=$last; done\n'
        f'cp -r {uv} "$into"\n'
    )
    python.chmod(0o755)
    program = program_text("provision/install_uv.sh")
    line = ["sh", "-c", program, "sh", str(python), "pip", str(folder), uv_requirement()]
    both = [subprocess.Popen(line) for _ in range(2)]
    assert [each.wait(120) for each in both] == [0, 0]
    assert subprocess.run([folder / "bin/uv", "--version"], check=True).returncode == 0
    assert [path.name for path in tmp_path.glob("uv-*")] == [folder.name]


def test_a_job_that_is_lost_twice_shows_the_end_of_its_log(worker, uv):
    """The installer kills the job's runner, as an out-of-memory killer would."""
    broken = worker.home / f".tpukit/uv-{UV_VERSION}/bin/uv"
    broken.unlink()
    broken.write_text(
        f'#!/bin/sh\n[ "$3" = venv ] || exec {uv}/bin/uv "$@"\necho the last words\n'
        f"job=$(echo {worker.home}/.tpukit/jobs/provision-venv-*)\n"
        'until grep -q words "$job/log"; do sleep 0.02; done\n'  # its runner writes it
        "kill -9 $(cut -d' ' -f1 \"$job/pid\")\n"
    )
    broken.chmod(0o755)
    with pytest.raises(TpukitError) as caught:
        ensure(worker.remote())
    assert "was lost" in caught.value.why
    assert caught.value.why.splitlines()[-1] == "the last words"
    undo_all([worker.remote()], [], deadline=seconds(120))
    assert list(worker.home.iterdir()) == []


class FlakyConnection(LocalConnection):
    """Loses the connection right after every third command has run."""

    calls = 0

    def run(self, command, **options):
        done = super().run(command, **options)
        FlakyConnection.calls += 1
        if FlakyConnection.calls % 3 == 0:
            raise TransportFailed("the connection broke")
        return done


@pytest.mark.slow
def test_connections_that_break_repeat_no_job(worker):
    FlakyConnection.calls = 0
    (report,) = apply(RemoteWorker(0, lambda: FlakyConnection(worker))).workers
    assert report.error == ""
    assert FlakyConnection.calls > 12
    assert all(job.endswith("-0") for job in ended_jobs(worker.home))


def slowed(worker, uv) -> tuple[Path, Path, Path]:
    """Let uv make no environment before it is told to.

    Returns a file with a line for each start, and two pipes: what is read once it has begun, and
    what is written to let it go on.
    """
    paths = tuple(worker.home / name for name in ("starts", "begun", "go_on"))
    starts, begun, go_on = paths
    for pipe in (begun, go_on):
        os.mkfifo(pipe)
    slow = worker.home / f".tpukit/uv-{UV_VERSION}/bin/uv"
    slow.unlink()
    slow.write_text(
        f'#!/bin/sh\n[ "$3" = venv ] || exec {uv}/bin/uv "$@"\n'
        f'echo once >>{starts}\necho >{begun}\nread line <{go_on}\nexec {uv}/bin/uv "$@"\n'
    )
    slow.chmod(0o755)
    return starts, begun, go_on


def left_running(worker, uv) -> tuple[Path, Path, DeadlinePassed]:
    """Let a client leave while uv makes the environment, its deadline over.

    Returns what `slowed` does but for the middle, and the client's error.
    """
    starts, begun, go_on = slowed(worker, uv)
    clock = HandClock()

    def pass_time() -> None:
        """Let the deadline pass once the job has begun."""
        begun.read_text()
        clock.advance(500)

    passing = threading.Thread(target=pass_time)
    passing.start()
    with pytest.raises(DeadlinePassed, match="provisioning failed on worker 0") as caught:
        ensure(worker.remote(), clock=clock)
    passing.join()
    return starts, go_on, caught.value


def test_typed_again_after_the_deadline_it_follows_the_job_that_still_runs(worker, uv):
    starts, go_on, error = left_running(worker, uv)
    assert error.why.startswith("step venv: ")
    assert "did not end in time" in error.why
    assert "a longer --timeout: it joins the steps that still run" in str(error.fix)
    followed: list[ProvisionEvent] = []

    def release_once_followed(event: ProvisionEvent) -> None:
        followed.append(event)
        if (event.step, event.kind) == ("venv", "started"):
            go_on.write_text("\n")

    assert apply(worker.remote(), on_event=release_once_followed).ok
    assert starts.read_text() == "once\n"


def test_undo_waits_for_what_a_client_that_is_gone_has_left_running(worker, uv):
    """What it took away would come again otherwise."""
    starts, go_on, _ = left_running(worker, uv)
    waits: list[str] = []

    def release_once_it_waits(event: ProvisionEvent) -> None:
        waits.append(event.text)
        go_on.write_text("\n")

    reports = undo_all(
        [worker.remote()], ["small"], deadline=seconds(120), on_event=release_once_it_waits
    )
    assert [(report.undone, report.error) for report in reports] == [(("small",), "")]
    assert re.fullmatch(r"provision-venv-\S+ still runs; its client is gone", "".join(waits))
    assert starts.read_text() == "once\n"
    assert not (worker.home / ".tpukit").exists()


@pytest.mark.journey
def test_a_second_client_waits_for_the_first_and_says_whose_it_waits_for(worker, uv):
    """Then it looks again: what the first has done is not done twice."""
    starts, begun, go_on = slowed(worker, uv)
    reports: list[ProvisionReport] = []
    first = threading.Thread(target=lambda: reports.append(apply(worker.remote())))
    first.start()
    begun.read_text()
    waits: list[ProvisionEvent] = []

    def release_once_it_waits(event: ProvisionEvent) -> None:
        if event.step == "wait":
            waits.append(event)
            go_on.write_text("\n")

    wanted = b"sortedcontainers==2.4.0\n"
    second = apply(worker.remote(), requirements=wanted, on_event=release_once_it_waits)
    first.join()
    assert second.ok
    assert reports[0].ok
    assert re.fullmatch(
        r"another client provisions it: PID \d+, since \d\d:\d\d:\d\d UTC, on \S+", waits[0].text
    )
    changed = [step.name for step in second.workers[0].steps if step.outcome == "changed"]
    assert changed == ["requirements", "verify"]
    assert starts.read_text() == "once\n"


@pytest.mark.journey
def test_an_upgrade_takes_the_newest_that_fits_and_without_it_the_pins_hold_again(provisioned):
    recipe = replace(small_recipe("iniconfig==1.1.1"), fits={"iniconfig": "<=2.0.0"})
    assert apply(provisioned.remote(), recipe=recipe).ok
    upgraded = recipe.upgraded("now")
    (report,) = apply(provisioned.remote(), recipe=upgraded).workers
    assert (report.error, outcomes(report)["packages"]) == ("", "changed")
    assert "iniconfig-2.0.0" in installed(provisioned.home)
    assert apply(provisioned.remote(), recipe=upgraded).changes == 0
    assert apply(provisioned.remote(), recipe=recipe).changes > 0
    assert "iniconfig-1.1.1" in installed(provisioned.home)


def test_the_variables_are_those_of_the_recipe_as_it_is_now(provisioned):
    for environment in ({"A": "1"}, {"A": "2"}, {}):
        recipe = replace(SMALL, environment=environment)
        (report,) = apply(provisioned.remote(), recipe=recipe).workers
        changed = [step.name for step in report.steps if step.outcome == "changed"]
        assert (report.error, changed) == ("", ["variables"])
        assert apply(provisioned.remote(), recipe=recipe).changes == 0


def test_undo_of_a_recipe_leaves_a_home_as_empty_as_it_was(provisioned):
    """A worker that cannot be reached stops no other one, and the error is of its class."""
    (provisioned.home / COMPILATION_CACHE).mkdir()
    workers = [RemoteWorker(1, refuse), provisioned.remote()]
    reports = undo_all(workers, ["small"], deadline=seconds(120))
    assert (reports[1].undone, reports[1].error) == (("small",), "")
    assert list(provisioned.home.iterdir()) == []
    with pytest.raises(TransportFailed, match="undo failed on worker 1") as caught:
        require_undone(reports)
    assert caught.value.why == "no answer from worker 1 (connection refused)"
