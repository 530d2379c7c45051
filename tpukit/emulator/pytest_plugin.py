"""Fixtures for the tests of scripts that use Cloud TPU.

Not an entry point: a plugin that pytest finds by itself costs every run of everybody who installs
tpukit. Ask for it in the `conftest.py` at the root of your tests:

    pytest_plugins = ["tpukit.emulator.pytest_plugin"]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tpukit.emulator.control_client import EmulatorClient
from tpukit.emulator.process import daemon


class TpuEmulator(EmulatorClient):
    """A running emulator: its control plane, and the variables that lead clients to it."""

    def __init__(self, directory: Path, found: daemon.RunningEmulator) -> None:
        super().__init__(found.url, found.token)
        self.directory = directory
        #: For `subprocess.run(env=…)`: gcloud and tpukit need no more, and no account.
        self.environment = daemon.environment(directory)

    def requests(self, method: str) -> list[dict[str, object]]:
        """Return what was asked of one method, such as `nodes.create`, the oldest first."""
        return [dict(each) for each in self.log() if each["method"] == method]


@pytest.fixture(scope="session")
def tpu_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TpuEmulator]:
    """One emulator a test session, on free ports and in a directory of its own."""
    directory = tmp_path_factory.mktemp("tpu-emulator")
    found = daemon.start(directory, create_seconds=0.5)
    try:
        yield TpuEmulator(directory, found)
    finally:
        daemon.stop(directory)


@pytest.fixture
def emulated_tpu(
    tpu_emulator: TpuEmulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[TpuEmulator]:
    """The session's emulator, named by this test's environment; its faults end with the test.

    Programs that the test starts find the emulator, and no configuration of gcloud or tpukit.
    """
    for name, value in tpu_emulator.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("TPUKIT_HOME", str(tmp_path / "tpukit"))
    yield tpu_emulator
    tpu_emulator.clear_faults()
