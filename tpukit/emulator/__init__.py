"""A Cloud TPU API and the firewall API on this machine, whose workers are real SSH servers.

The contract: `Emulator` runs one for a block, `EmulatorClient` drives one that runs,
`pytest_plugin` offers one to tests, `process.daemon` starts, finds and stops that of a directory;
all else is private. Requests pass from `api` to `tpu_service` and `compute_service` over the state
in `core`; `faults` spoils them on request. What listens for SSH is in `workers`, which the APIs
know by `workers.worker_host` alone. No wire code is shared with `tpukit.cloud`, so that clients
which are not ours judge both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpukit.emulator.control_client import EmulatorClient
    from tpukit.emulator.library import Emulator

__all__ = ["Emulator", "EmulatorClient"]


def __getattr__(name: str) -> Any:
    """Load what is asked for: every part of the emulator imports this package."""
    if name == "Emulator":
        from tpukit.emulator.library import Emulator

        return Emulator
    if name == "EmulatorClient":
        from tpukit.emulator.control_client import EmulatorClient

        return EmulatorClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
