"""The small files of an emulator's directory, as a crash may leave them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tpukit.emulator.process.home import EmulatorHome, RunningEmulator


@pytest.fixture
def home(tmp_path: Path) -> EmulatorHome:
    found = EmulatorHome(tmp_path / "emulator")
    found.create()
    return found


def test_a_directory_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    home = EmulatorHome(tmp_path)
    tmp_path.chmod(0o755)
    home.create()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_token_is_of_one_run_and_its_owners_alone(home: EmulatorHome) -> None:
    first, second = home.new_token(), home.new_token()
    assert first != second
    assert home.token_file.read_text().strip() == second
    assert stat.S_IMODE(home.token_file.stat().st_mode) == 0o600


def test_an_identity_is_made_once(home: EmulatorHome) -> None:
    assert len(home.identity()) == 32
    assert home.identity() == home.identity()


@pytest.mark.parametrize("content", [b"", b"\n", b"ab", b"0" * 31, b"\xff\xfe", b"g" * 32])
def test_an_identity_that_was_cut_is_nobodys(home: EmulatorHome, content: bytes) -> None:
    home.identity()
    home.identity_file.write_bytes(content)
    identity = home.identity()
    assert len(identity) == 32
    assert identity.encode() not in (content, content.strip())
    assert home.identity() == identity


def test_what_a_newer_version_publishes_is_understood_as_far_as_it_is_known(
    home: EmulatorHome,
) -> None:
    running = RunningEmulator(1, 2, "http://127.0.0.1:3", "token", "9.0.0", "portable", 4.0)
    home.publish(running)
    document = json.loads(home.document.read_text())
    home.document.write_text(json.dumps({**document, "colour": "blue"}))
    assert home.published() == running


def test_where_it_answers_cut_at_any_byte_is_nowhere(home: EmulatorHome) -> None:
    running = RunningEmulator(1, 2, "http://127.0.0.1:3", "token", "0.1.0", "portable", 4.0)
    home.publish(running)
    assert home.published() == running
    whole = home.document.read_bytes()
    for length in range(len(whole) - 2):
        home.document.write_bytes(whole[:length])
        assert home.published() is None, length
