"""The small files of an emulator's directory, as a crash may leave them."""

from __future__ import annotations

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


def test_a_token_is_made_once_and_is_its_owners_alone(home: EmulatorHome) -> None:
    token = home.token()
    assert len(token) == 32
    assert home.token() == token
    assert stat.S_IMODE(home.token_file.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"\n", b"ab", b"0" * 31, b"\xff\xfe", b"g" * 32])
def test_a_token_that_was_cut_lets_nobody_in(home: EmulatorHome, content: bytes) -> None:
    home.token()
    home.token_file.write_bytes(content)
    token = home.token()
    assert len(token) == 32
    assert token.encode() not in (content, content.strip())
    assert home.token() == token


def test_where_it_answers_cut_at_any_byte_is_nowhere(home: EmulatorHome) -> None:
    running = RunningEmulator(1, 2, "http://127.0.0.1:3", "token", "0.1.0", "portable", 4.0)
    home.publish(running)
    assert home.published() == running
    whole = home.document.read_bytes()
    for length in range(len(whole) - 2):
        home.document.write_bytes(whole[:length])
        assert home.published() is None, length
