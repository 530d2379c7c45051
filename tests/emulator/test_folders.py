"""A worker's folder is removed, and nothing that it leads to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.emulated_workers import needs_root

from tpukit.emulator.workers.worker_folders import folders, mounts_below, remove


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that is no worker's, with a folder in it."""
    found = tmp_path / "outside"
    (found / "inner").mkdir(parents=True)
    (found / "inner").chmod(0o755)
    (found / "inner" / "precious").write_text("data")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "workers" / "t1v-n-0-w-0"
    (found / "home" / "ada").mkdir(parents=True)
    (found / "etc").mkdir()
    (found / "etc" / "node").write_text("n1\n")
    return found


def is_whole(outside: Path) -> bool:
    inner = outside / "inner"
    return (inner / "precious").read_text() == "data" and inner.stat().st_mode & 0o777 == 0o755


def test_links_in_a_worker_s_home_lead_nowhere(folder: Path, outside: Path) -> None:
    for name, target in (("all", outside), ("one", outside / "inner"), ("root", Path("/"))):
        (folder / "home" / "ada" / name).symlink_to(target)
    (folder / "home" / "ada" / "closed").mkdir(mode=0o000)
    remove(folder)
    assert not folder.exists()
    assert is_whole(outside)


def test_a_folder_that_became_a_link_is_removed_as_a_link(folder: Path, outside: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(outside)
    remove(folder)
    assert not folder.is_symlink()
    assert is_whole(outside)


@needs_root
def test_what_is_mounted_in_a_worker_s_home_is_not_removed(folder: Path, outside: Path) -> None:
    """In a mount namespace, so that a failure leaves no mount on this machine."""
    place = folder / "home" / "ada" / "da ta"
    place.mkdir()
    program = "import sys, pathlib; from tpukit.emulator.workers.worker_folders import remove; "
    program += "remove(pathlib.Path(sys.argv[1]))"
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    line = ["unshare", "--mount", "sh", "-c", script, "sh", str(outside), str(place)]
    done = subprocess.run(
        [*line, sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert is_whole(outside)
    assert f"{place} is mounted there" in done.stderr
    assert mounts_below(folder) == []
    remove(folder)
    assert not folder.exists()


def test_a_damaged_note_belongs_to_no_node(folder: Path) -> None:
    assert folders(folder.parent, "n1") == [folder]
    (folder / "etc" / "node").write_bytes(b"\xff\xfe")
    assert folders(folder.parent, "n1") == []
    (folder / "etc" / "node").unlink()
    (folder / "etc" / "node").mkdir()
    assert folders(folder.parent, "n1") == []
