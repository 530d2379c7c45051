"""The commands' access to the emulator: its environment and its control plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpukit.console import Console
from tpukit.errors import Fix
from tpukit.paths import Paths, private_directory

if TYPE_CHECKING:
    from tpukit.emulator.control_client import EmulatorClient


def ensure_environment(paths: Paths, console: Console) -> Mapping[str, str]:
    """Return the environment variables for clients of the emulator; start it if none runs."""
    from tpukit.emulator.process import daemon

    directory = private_directory(paths.emulator)
    process = daemon.running(directory)
    if process is None:
        process = daemon.start(directory)
        console.say("emulator started")
        console.suggest(Fix.command("tpukit", "emulator", "stop", note="it runs until you stop it"))
    return daemon.environment(directory, process)


def client(paths: Paths) -> EmulatorClient:
    """Return a client of the running emulator's control plane; raise `NotFound` if none runs."""
    from tpukit.emulator.control_client import EmulatorClient
    from tpukit.emulator.process import daemon

    process = daemon.expected(paths.emulator)
    return EmulatorClient(process.url, process.token)
