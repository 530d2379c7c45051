"""How the commands of `tpukit emulator` reach the one that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpukit.cli.toolkit import Toolkit
from tpukit.errors import NotFound

if TYPE_CHECKING:
    from tpukit.emulator.client import EmulatorClient
    from tpukit.emulator.daemon import Running


def running(toolkit: Toolkit) -> Running:
    """Return the emulator that runs; raise `NotFound` where none does."""
    from tpukit.emulator import daemon

    found = daemon.running(toolkit.paths.emulator)
    if found is None:
        raise NotFound("no emulator is running", fix="tpukit emulator start")
    return found


def client(toolkit: Toolkit) -> EmulatorClient:
    """Return a client of the running emulator's control plane."""
    from tpukit.emulator.client import EmulatorClient

    found = running(toolkit)
    return EmulatorClient(found.url, found.token)
