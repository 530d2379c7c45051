"""A Cloud TPU API and a firewall API on this machine, with real SSH servers as workers.

The public parts: `Emulator` runs an emulator for a block, `EmulatorClient` drives a running one,
`pytest_plugin` provides one to tests, and `process.daemon` starts, finds and stops the emulator of
a directory. All other modules are private. `api` passes requests to `tpu_service` and
`compute_service`, which share the state in `core`; `faults` makes requests fail on demand.
`workers` holds the SSH servers; the services know only `workers.worker_host`. The emulator shares
no wire code with `tpukit.google`, so that foreign clients judge both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpukit.emulator.control_client import EmulatorClient
    from tpukit.emulator.library import Emulator

__all__ = ["Emulator", "EmulatorClient"]


def __getattr__(name: str) -> Any:
    """Import the two classes only on demand: every module of the emulator imports this package."""
    if name == "Emulator":
        from tpukit.emulator.library import Emulator

        return Emulator
    if name == "EmulatorClient":
        from tpukit.emulator.control_client import EmulatorClient

        return EmulatorClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
