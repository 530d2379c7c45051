"""The engine whose workers boot, as far as no system has to be built for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.command_line import Tpukit
from support.emulated_workers import NODE, emulated_workers
from support.machines import needs_machines

from tpukit.emulator.workers.engines.engine import EmulatedWorker
from tpukit.emulator.workers.engines.machines.machines_engine import MachinesEngine
from tpukit.emulator.workers.engines.machines.root_file_system import ensure_root
from tpukit.emulator.workers.slice_facts import SliceFacts
from tpukit.errors import TpukitError

pytestmark = pytest.mark.process


@needs_machines
def test_a_machine_that_does_not_boot_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with emulated_workers(tmp_path) as workers:
        (record,) = workers.allocate()
        facts = SliceFacts.of({"name": NODE, "acceleratorType": "v3-8"}, [record])
        worker = EmulatedWorker(record, facts, tmp_path / "workers" / "one", f"test/{NODE}/0")
        worker.folder.parent.mkdir(exist_ok=True)
        engine = MachinesEngine({}, root, "test")
        with pytest.raises(TpukitError, match="does not boot") as caught:
            engine.start(worker)
        engine.close()
    assert "os-release" in caught.value.why
    assert not [*Path("/sys/fs/cgroup").glob("**/tpukit-test-*")]
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="root: NOT checked by this run")
def test_a_program_that_is_missing_is_one_error_with_its_package(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ip", "mount", "nsenter", "unshare", "systemd-nspawn"):
        (programs / name).symlink_to(shutil.which(name) or "/bin/true")
    tpukit = Tpukit(tmp_path, {"PATH": str(programs)})
    done = tpukit.ends_with(2, "emulator", "start", "--engine", "machines")
    assert "error: the machines engine cannot run here (it needs debootstrap)" in done.stderr
    assert "fix: apt-get install --yes debootstrap" in done.stderr
    assert not tpukit.processes()


@needs_machines
@pytest.mark.parametrize(("word", "runs"), [("Couldn't download packages: dbus", 3), ("No key", 1)])
def test_packages_that_a_mirror_did_not_send_are_requested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, runs: int
) -> None:
    (tmp_path / "debootstrap").write_text(f"""#!/bin/sh
echo run >>{tmp_path}/runs
[ "$(wc -l <{tmp_path}/runs)" -lt 3 ] || exit 0
echo "E: {word}"; exit 1
""")
    (tmp_path / "debootstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if runs == 3:
        assert ensure_root(tmp_path / "cache", print).is_dir()
    else:
        with pytest.raises(TpukitError, match="cannot be built"):
            ensure_root(tmp_path / "cache", print)
    assert (tmp_path / "runs").read_text().count("run") == runs
