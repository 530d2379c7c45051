"""Files over SSH: sftp, both protocols of scp, and what a worker is made of."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.emulated_workers import USER, EmulatedWorkers, emulated_workers, possible_engines

pytestmark = pytest.mark.process


@pytest.fixture(params=possible_engines())
def any_worker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EmulatedWorkers]:
    """A worker of each engine that this machine can run."""
    with emulated_workers(tmp_path, request.param) as workers:
        workers.allocate()
        workers.boot()
        yield workers


def scp(worker: EmulatedWorkers, *words: str) -> subprocess.CompletedProcess[bytes]:
    port = ["-P", str(worker.records[0].port)]
    return subprocess.run(
        ["scp", *worker.options, *port, *words], capture_output=True, timeout=120, check=False
    )


@pytest.mark.parametrize("protocol", [["-s"], ["-O"]], ids=["sftp", "legacy"])
@pytest.mark.parametrize("place", ["", "~/", "sub/"])
def test_scp_copies_a_tree_there_and_back(any_worker, tmp_path, protocol, place):
    worker = any_worker
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "data").write_bytes(os.urandom(200_000))
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o755)
    worker.output("mkdir -p sub")
    there = f"{USER}@{worker.records[0].address}:{place}"
    up = scp(worker, *protocol, "-pr", str(tree), there)
    assert (up.returncode, up.stderr) == (0, b"")
    down = scp(worker, *protocol, "-pr", f"{there}tree", str(tmp_path / "back"))
    assert (down.returncode, down.stderr) == (0, b"")
    assert (tmp_path / "back/inner/data").read_bytes() == (tree / "inner/data").read_bytes()
    assert (tmp_path / "back/run").stat().st_mode & 0o777 == 0o755


def test_scp_of_a_missing_file_fails(worker, tmp_path):
    there = f"{USER}@{worker.records[0].address}:missing"
    assert scp(worker, there, str(tmp_path)).returncode == 1


def test_sftp_starts_in_the_users_home_on_the_worker(worker):
    with worker.client() as client, client.open_sftp() as files:
        assert files.normalize(".") == str(worker.home())
        with files.open("note", "w") as file:
            file.write("hello")
        assert files.stat("note").st_size == 5
    assert worker.output("cat note") == "hello"


@pytest.mark.full_size
def test_a_workers_python_makes_environments_of_its_own(worker):
    worker.output("python3 -m venv env")
    prefix = worker.output("env/bin/python -c 'import sys; print(sys.prefix)'")
    pip = worker.output("env/bin/pip --version")
    assert prefix == str(worker.home() / "env")
    assert str(worker.home()) in pip


def test_the_emulators_own_environment_does_not_leak_into_a_workers_python(worker):
    answer = worker.output(
        'python3 -c "import sys; print(sys.prefix == sys.base_prefix, sys.path)"'
    )
    assert answer.startswith("True")
    assert str(Path(os.__file__).parent) in answer
    assert os.environ.get("VIRTUAL_ENV", "/nowhere") not in answer


def test_pip_of_a_workers_python_installs_for_its_user_alone(worker):
    """Nothing is downloaded: the package is made here."""
    if not worker.output("python3 -m pip --version 2>/dev/null || true"):
        pytest.skip("python3 of this machine has no pip: NOT checked by this run")
    with zipfile.ZipFile(worker.home() / "own_tool-1-py3-none-any.whl", "w") as wheel:
        about = "own_tool-1.dist-info"
        wheel.writestr("own_tool.py", "")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: own-tool\nVersion: 1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr(f"{about}/RECORD", "")
    # Some distributions mark their Python as managed, and pip refuses even a user's packages.
    worker.output("PIP_BREAK_SYSTEM_PACKAGES=1 pip3 install --no-index ./*.whl")
    answer = worker.output("python3 -c 'import own_tool; print(own_tool.__file__)'")
    assert answer.startswith(str(worker.home() / ".local"))


def test_two_workers_share_neither_home_nor_temporary_files(workers):
    workers.allocate(2)
    workers.boot("v4-16")
    seen = [workers.output("touch mark; echo $HOME $TMPDIR *", index=index) for index in (0, 1)]
    homes, temporary, files = zip(*(text.split() for text in seen), strict=True)
    assert len({*homes}) == len({*temporary}) == 2
    assert files == ("mark", "mark")


def test_the_machine_s_own_temporary_folder_and_name_are_seen_as_the_page_says(worker):
    with tempfile.NamedTemporaryFile("w", dir="/tmp") as file:
        file.write("of this machine")
        file.flush()
        assert worker.output(f"cat {file.name}") == "of this machine"
    name = worker.output("python3 -c 'import socket; print(socket.gethostname())'")
    assert name == socket.gethostname()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("sudo echo run", "run"),
        ("sudo -n -E -u root -H A=1 sh -c 'echo $A'", "1"),
        ("sudo -- echo run", "run"),
        ("sudo -n true && echo allowed", "allowed"),
        ("sudo -v && echo valid", "valid"),
        ("echo words | sudo -S cat", "words"),
        ("sudo --preserve-env env | grep -c TPUKIT_EMULATED_DEVICES", "1"),
    ],
)
def test_sudo_runs_the_command_as_it_is(worker, line, answer):
    assert worker.output(line) == answer


def test_sudo_passes_the_commands_own_status_on(worker):
    assert worker.ssh("sudo sh -c 'exit 41'").returncode == 41


def test_hostname_tells_the_workers_names(worker):
    record = worker.records[0]
    lines = worker.output("hostname; hostname -s; hostname -f; hostname -I").splitlines()
    full = f"{record.hostname}.us-central1-a.c.p.internal"
    assert lines == [record.hostname, record.hostname, full, record.address]
    assert worker.ssh("sudo hostname other").returncode == 1
    assert worker.output("uname -n; uname; uname -a | cut -d ' ' -f 2").splitlines() == [
        record.hostname,
        os.uname().sysname,
        record.hostname,
    ]
    assert worker.ssh("uname --nothing").returncode == 1


def test_everything_a_worker_keeps_is_closed_to_other_accounts(worker):
    worker.output("true")
    folder = worker.home().parent.parent
    modes = {path.stat().st_mode & 0o077 for path in [folder, *folder.iterdir(), worker.home()]}
    assert modes == {0}
