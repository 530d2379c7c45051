"""Workers that are copied to and from, and a file to copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.transfer_workers import SIZE, Fleet, fleet, openssh_account

from tpukit.ssh.keys import KeyPair


@pytest.fixture
def one(request: pytest.FixtureRequest, tmp_path: Path, key: KeyPair) -> Iterator[Fleet]:
    with fleet(tmp_path, key, 1, openssh_account(request)) as workers:
        yield workers


@pytest.fixture
def four(request: pytest.FixtureRequest, tmp_path: Path, key: KeyPair) -> Iterator[Fleet]:
    with fleet(tmp_path, key, 4, openssh_account(request)) as workers:
        yield workers


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    file = tmp_path / "noise"
    file.write_bytes(os.urandom(SIZE))
    return file
