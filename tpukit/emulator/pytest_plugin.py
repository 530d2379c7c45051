"""Fixtures for the tests of scripts that use Cloud TPU.

It is not an entry point: pytest would load it in every run of everyone who installs tpukit. Name it
in the `conftest.py` at the root of your tests:

    pytest_plugins = ["tpukit.emulator.pytest_plugin"]
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tpukit.emulator.library import Emulator, cleared


@pytest.fixture(scope="session")
def tpu_emulator() -> Iterator[Emulator]:
    """One emulator for the whole test session, with SSH servers as workers."""
    with Emulator(workers="ssh", create_seconds=0.5) as emulator:
        yield emulator


@pytest.fixture
def emulated_tpu(tpu_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """The session's emulator, as if just started, for one test.

    Programs that the test starts use it, and find no other configuration or credentials of gcloud
    or tpukit.
    """
    for name in os.environ.keys() - cleared(os.environ).keys():
        monkeypatch.delenv(name)
    for name, value in tpu_emulator.variables.items():
        monkeypatch.setenv(name, value)
    yield tpu_emulator
    tpu_emulator.reset()
