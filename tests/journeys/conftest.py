"""One emulator for all journeys, started by the first `up`, with a v3-8 slice named demo."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.command_line import Finished, Tpukit


@dataclass(frozen=True)
class FirstUp:
    tpukit: Tpukit
    finished: Finished


@pytest.fixture(scope="session")
def first_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstUp]:
    """`tpukit --local up v3-8 demo` where nothing is: no home, no key, no emulator, no slice."""
    tpukit = Tpukit(tmp_path_factory.mktemp("journeys"))
    try:
        yield FirstUp(tpukit, tpukit("--local", "up", "v3-8", "demo"))
    finally:
        tpukit("emulator", "stop")


@pytest.fixture(scope="session")
def tpukit(first_up: FirstUp) -> Tpukit:
    """The program, with the shared emulator and its slice demo."""
    assert first_up.finished.returncode == 0, first_up.finished.stderr
    return first_up.tpukit


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpukit]:
    """The program with a home of its own, for what would disturb the shared emulator."""
    with Tpukit(tmp_path_factory.mktemp("alone")) as tpukit:
        yield tpukit
