"""The emulator as the commands reach it: started where none runs, and its control plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpukit.console import Console
from tpukit.errors import Fix, NotFound
from tpukit.paths import Paths, private_directory

if TYPE_CHECKING:
    from tpukit.emulator.control_client import EmulatorClient
    from tpukit.emulator.process.daemon import RunningEmulator


def ensure_environment(paths: Paths, console: Console) -> Mapping[str, str]:
    """Return the variables that point clients at the emulator; start it where none runs."""
    from tpukit.emulator.process import daemon

    directory = private_directory(paths.emulator)
    found = daemon.running(directory)
    if found is None:
        found = daemon.start(directory)
        console.say("emulator started")
        console.suggest(Fix.command("tpukit", "emulator", "stop", note="it runs until then"))
    return daemon.environment(directory, found)


def running(paths: Paths) -> RunningEmulator:
    """Return the emulator that runs; raise `NotFound` where none does."""
    from tpukit.emulator.process import daemon

    found = daemon.running(paths.emulator)
    if found is None:
        raise NotFound("no emulator is running", fix=Fix.command("tpukit", "emulator", "start"))
    return found


def client(paths: Paths) -> EmulatorClient:
    """Return a client of the running emulator's control plane; raise `NotFound` where none runs."""
    from tpukit.emulator.control_client import EmulatorClient

    found = running(paths)
    return EmulatorClient(found.url, found.token)
