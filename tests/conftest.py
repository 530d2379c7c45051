"""What tests of several rooms share: clouds, an environment with JAX, and who runs which tests."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import libtpu
from support.local_cloud import Cloud, FakeClock, running_cloud
from support.local_worker import LocalWorker, seconds
from support.measured_python import measuring

from tpukit.provision.provisioning import provision_all
from tpukit.provision.recipes import Recipe
from tpukit.provision.wanted import Wanted
from tpukit.ssh.worker_files import venv_python

pytest_plugins = [
    "support.run_servers",
    "support.coverage_files",
    "support.passed_tests",
    "support.second_attempts",
    "support.fixes",
    "support.ssh_fixtures",
]

# A shell that starts the tests in the background has INT ignored, and so would everything that they
# start: Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# rich draws nothing on a terminal that says it is dumb.
os.environ["TERM"] = "xterm"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cloud(tmp_path: Path, clock: FakeClock) -> Iterator[Cloud]:
    """A cloud where a create takes 30 seconds that nobody waits for."""
    with running_cloud(tmp_path, clock=clock) as found:
        yield found


@pytest.fixture
def prompt_cloud(tmp_path: Path) -> Iterator[Cloud]:
    """A cloud on the machine's clock where everything is done at once."""
    with running_cloud(tmp_path, create_seconds=0.0) as found:
        yield found


@pytest.fixture(scope="session")
def jax_home(tmp_path_factory: pytest.TempPathFactory, coverage_settings: str) -> Path:
    """The home of an emulated worker that was provisioned with the recipe jax, twice.

    All processes of a run share it: the first that needs it makes it.
    """
    with _shared(tmp_path_factory, "jax") as shared:
        if not shared.exists():
            made, home = tmp_path_factory.mktemp("provisioned"), tmp_path_factory.mktemp("jax-home")
            _provision_jax(made)
            python = venv_python("jax")
            measuring(made / python, home / python, coverage_settings)
            (home / "provisioned").symlink_to(made)
            shared.symlink_to(home)
    return shared.resolve()


@pytest.fixture(scope="session")
def libtpu_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the JAX and the libtpu of the recipe jax, for all processes of a run."""
    with _shared(tmp_path_factory, "libtpu") as shared:
        if not shared.exists():
            shared.symlink_to(libtpu.install(tmp_path_factory.mktemp("libtpu")))
    return shared.readlink()


@contextmanager
def _shared(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Yield a path that all processes of a run share, to one of them at a time."""
    base = factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path


@pytest.fixture(scope="session")
def provisioned_home(jax_home: Path) -> Path:
    """The home that was provisioned itself: provisioning finds nothing to do there."""
    return (jax_home / "provisioned").resolve()


def _provision_jax(home: Path) -> None:
    worker = LocalWorker(home, environment={"TPUKIT_EMULATED_DEVICES": "8"})
    for changes in (True, False):
        jax = Wanted((), (Recipe.named("jax"),))
        report = provision_all([worker.remote()], jax, deadline=seconds(300))
        assert report.workers[0].error == ""
        assert (report.changes > 0) is changes


#: Marks of long tests, those that hold a process up the longest first.
_LONG = ("defects", "gcloud", "kills", "night", "bench", "examples", "full_size", "pages", "wheel")
#: Files that take longer than others: begun late, they would keep all other processes waiting.
_LONGEST = ("provision/test_apply.py", "agent/test_pushed_trees.py")
#: Of the long tests those that take minutes, by a part of their names.
_MINUTES = (
    "test_in_every_row_of_the_page_tpukit_is_right",
    "test_gcloud_surface.py",
    "test_up_keep_comes_through_a_loss_at_each",
    "test_interplay.py",
    "test_wherever_it_ends_every_file",
    "test_compiled_for_tpus.py",
    "test_every_step_of_an_ordinary_user",
    "test_the_training_programs_learn",
    "test_a_file_written_on_one_slice",
    "test_gcloud_ssh.py",
    "how-to/measure-a-slice",
    "test_what_starts_at_once_takes_a_fraction",
    "test_light_recipes_compute",
    "test_machines.py",
    "test_an_image_is_built",
    "test_a_short_night",
    "test_up_and_train_trains_on_every_device",
    "test_a_package_comes_by_an_ordinary_user",
    "install-requirements",
    "test_every_mutant_is_found",
)


def pytest_sessionstart(session: pytest.Session) -> None:
    # A process tells pytest-rerunfailures of each test in one write and asks it in the next one,
    # which would wait for what acknowledges the first: 40 ms.
    if "PYTEST_XDIST_WORKER" in os.environ and session.config.getoption("reruns", None):
        session.config.failures_db.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_collection_finish() -> None:
    """Leave thousands of tests, which are there to the end, out of each collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process run all that share something, the longest jobs first."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if _rank_of_mark(item) < len(_LONG) or item.get_closest_marker("journey"):
            item.add_marker(pytest.mark.unmeasured)
    items.sort(key=_rank)
    workers = getattr(items[0].config, "workerinput", {}).get("workercount", 0) if items else 0
    items[:] = _short_second(items, workers)


def _short_second(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the items with as many short groups as there are processes behind the first groups.

    pytest-xdist gives a process its second group at once if the first has only one or two tests.
    A second long one would wait behind it.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_group(item), []).append(item)
    ordered = list(groups.values())
    last = max(processes, len(ordered) - processes)
    ordered = [*ordered[:processes], *ordered[last:], *ordered[processes:last]]
    return [item for group in ordered for item in group]


def _group(item: pytest.Item) -> str:
    """Return the name of all that one process runs: a file, of a long test what it shares there."""
    file = str(item.path.relative_to(item.config.rootpath))
    if "first_up" in getattr(item, "fixturenames", ()):
        return "demo"
    if not isinstance(item, pytest.Function) or _rank_of_mark(item) == len(_LONG):
        return file
    fixtures = item._fixtureinfo.name2fixturedefs
    shared = {name for name, found in fixtures.items() if found[-1].scope == "module"}
    given = item.callspec.params if hasattr(item, "callspec") else {}
    # Without brackets: pytest-xdist takes no name of a group that has one.
    params = (str(given[name]) for name in sorted(shared & {*given}))
    return " ".join([file, *params]) if shared else item.nodeid


def _rank(item: pytest.Item) -> tuple[int, int, int]:
    minutes = (rank for rank, part in enumerate(_MINUTES) if part in item.nodeid)
    return next(minutes, len(_MINUTES)), _rank_of_mark(item), _rank_of_kind(item)


def _rank_of_mark(item: pytest.Item) -> int:
    marks = {mark.name for mark in item.iter_markers()}
    return next((rank for rank, name in enumerate(_LONG) if name in marks), len(_LONG))


def _rank_of_kind(item: pytest.Item) -> int:
    if "first_up" in getattr(item, "fixturenames", ()):
        return 0
    if str(item.path).endswith(_LONGEST):
        return 1
    marks = {mark.name for mark in item.iter_markers()}
    return next(
        (rank for rank, name in ((1, "journey"), (1, "slow"), (2, "process")) if name in marks), 3
    )
