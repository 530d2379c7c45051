"""The resources of an emulator that does not run, for a test to look at and to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tpukit.emulator.api.http_server import STATE_NAME
from tpukit.emulator.core.state import EmulatorState, StateFile


@contextmanager
def stopped_state(directory: Path) -> Iterator[EmulatorState]:
    """Give the state that is saved in a directory, and save what the block changes."""
    with closing(StateFile(directory / STATE_NAME)) as file:
        state = file.load()
        yield state
        file.save(state)
