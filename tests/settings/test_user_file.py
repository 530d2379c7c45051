"""Changes of config.toml keep every other line, and refuse what they would break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpukit.errors import BadInput
from tpukit.settings.user_file import set_value, unset_value

FILE = """\
# mine
zone = "us-central1-a"  # near
source_ranges = [
  "10.0.0.0/8",
]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "config.toml"


def test_the_first_value_makes_a_private_file(file: Path) -> None:
    set_value(file, "zone", "us-central2-b")
    assert file.read_text() == 'zone = "us-central2-b"\n'
    assert file.stat().st_mode & 0o077 == 0


def test_a_value_is_replaced_added_and_removed_and_other_lines_stay(file: Path) -> None:
    file.parent.mkdir(mode=0o700)
    file.write_text(FILE)
    set_value(file, "zone", "us-east1-d")
    set_value(file, "project", "my-project")
    expected = FILE.replace('zone = "us-central1-a"  # near', 'zone = "us-east1-d"')
    assert file.read_text() == f'project = "my-project"\n{expected}'
    assert unset_value(file, "project")
    assert not unset_value(file, "project")
    assert file.read_text() == expected


def test_a_link_stays_and_the_file_behind_it_keeps_its_mode(file: Path, tmp_path: Path) -> None:
    own = tmp_path / "dotfiles.toml"
    own.write_text(FILE)
    own.chmod(0o644)
    file.parent.mkdir(mode=0o700)
    file.symlink_to(own)
    set_value(file, "zone", "us-east1-d")
    assert file.is_symlink()
    assert "us-east1-d" in own.read_text()
    assert own.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("name", "value"),
    [("zone", "bad zone"), ("nothing", "1"), ("source_ranges", "10.0.0.0/8"), ("project", "")],
)
def test_a_wrong_name_a_wrong_value_and_a_value_of_several_lines_are_refused(
    file: Path, name: str, value: str
) -> None:
    file.parent.mkdir(mode=0o700)
    file.write_text(FILE)
    with pytest.raises(BadInput):
        set_value(file, name, value)
    assert file.read_text() == FILE
