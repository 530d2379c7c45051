"""Directories come from the environment, and nothing is created before it is needed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tpukit.errors import BadInput, SecurityRefusal
from tpukit.paths import Paths, keep_json, private_directory, read_own, recall_json, replace_file


@contextmanager
def another_account() -> Iterator[None]:
    """Act as nobody where the tests run as root, so that permissions hold there too."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_directories_are_below_home_by_default(tmp_path: Path) -> None:
    paths = Paths.from_environment({"HOME": str(tmp_path)})
    assert paths.config_file == tmp_path / ".config/tpukit/config.toml"
    assert paths.state == tmp_path / ".local/state/tpukit"
    assert paths.cache == tmp_path / ".cache/tpukit"
    assert {path.parent for path in (paths.emulator, paths.key_directory, paths.ssh)} == {
        paths.state
    }
    assert paths.journal.parent == paths.state


def test_the_xdg_variables_move_them_and_home_is_not_needed_then() -> None:
    paths = Paths.from_environment(
        {"XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "/k"}
    )
    assert paths == Paths(Path("/c/tpukit"), Path("/s/tpukit"), Path("/k/tpukit"))


def test_a_relative_xdg_variable_is_ignored(tmp_path: Path) -> None:
    paths = Paths.from_environment({"HOME": str(tmp_path), "XDG_STATE_HOME": "state"})
    assert paths.state == tmp_path / ".local/state/tpukit"


def test_tpukit_home_overrides_all() -> None:
    paths = Paths.from_environment({"TPUKIT_HOME": "/t", "HOME": "/h", "XDG_STATE_HOME": "/s"})
    assert paths == Paths(Path("/t/config"), Path("/t/state"), Path("/t/cache"))


def test_making_paths_creates_nothing(tmp_path: Path) -> None:
    Paths.from_environment({"TPUKIT_HOME": str(tmp_path / "new")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HOME": ""},
        {"HOME": "relative"},
        {"HOME": "/there/is/no/such/home"},
        {"HOME": "/dev/null"},
        {"TPUKIT_HOME": "relative", "HOME": "/"},
    ],
)
def test_a_home_that_cannot_be_is_refused_with_another_way(environ: dict[str, str]) -> None:
    with pytest.raises(BadInput) as refused:
        Paths.from_environment(environ)
    assert "TPUKIT_HOME" in str(refused.value.fix)


def test_a_home_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o000)
    with another_account(), pytest.raises(BadInput, match="cannot be read"):
        Paths.from_environment({"HOME": str(home)})


def test_a_private_directory_and_its_new_parents_are_for_the_owner_alone(tmp_path: Path) -> None:
    made = private_directory(tmp_path / "state" / "keys")
    assert (mode_of(made), mode_of(made.parent)) == (0o700, 0o700)


def test_an_open_directory_is_tightened(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys").chmod(0o755)
    private_directory(tmp_path / "keys")
    assert mode_of(tmp_path / "keys") == 0o700


def test_a_directory_of_somebody_else_is_refused() -> None:
    """The root directory is nobody's own."""
    with another_account(), pytest.raises(SecurityRefusal, match="another user"):
        private_directory(Path("/"))


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    with pytest.raises(BadInput, match="keys is not a directory"):
        private_directory(tmp_path / "keys")
    with pytest.raises(BadInput, match="cannot make the directory"):
        private_directory(tmp_path / "keys" / "deeper")


def test_a_file_that_somebody_else_could_have_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("text")
    path.chmod(0o600)
    assert read_own(path) == "text"
    path.chmod(0o620)
    with pytest.raises(SecurityRefusal, match="open to other users"):
        read_own(path)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        read_own(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert read_own(tmp_path / "pipe") == ""  # at once
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
        with pytest.raises(SecurityRefusal, match="belongs to another user"):
            read_own(path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, "\udcff"])
def test_what_cannot_be_recalled_is_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hints.json"
    assert recall_json(path) == {}
    keep_json(path, {"known": 1})
    assert recall_json(path) == {"known": 1}
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    assert recall_json(path) == {}


@pytest.mark.parametrize("call", ["write", "fsync", "chmod", "replace"])
def test_ctrl_c_in_a_file_that_is_replaced_stays_ctrl_c_and_leaves_one_file(
    tmp_path: Path, call: str
) -> None:
    """Also where it comes when the file has its name, but not yet returned."""
    file = tmp_path / "state.json"
    file.write_text("old")

    def press(frame: FrameType, event: str, argument: object) -> None:
        name = getattr(argument, "__name__", "")
        if event == "c_return" and frame.f_code is replace_file.__code__ and name == call:
            raise KeyboardInterrupt

    watched = sys.getprofile()
    sys.setprofile(press)
    try:
        with pytest.raises(KeyboardInterrupt):
            replace_file(file, "new", durable=True)
    finally:
        sys.setprofile(watched)
    assert file.read_text() == ("new" if call == "replace" else "old")
    assert list(tmp_path.iterdir()) == [file]
