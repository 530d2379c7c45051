"""The TPU devices of this worker, and who has them open."""

from __future__ import annotations

import contextlib
import glob
import os

from tpukit.agent.main import Home


def device_files(home: Home) -> set[str]:
    """Return the files of the devices: /dev/accelN on v2 to v4, /dev/vfio/N from v5e on.

    Source: docs/reference/real-workers.md.
    """
    if home.emulated:
        return set(glob.glob(f"{home.folder}/emulated-devices/*"))
    return {*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")}


def open_files(process: str = "[0-9]*") -> set[str]:
    """Return the files that a process has open, or that any has, as far as this user may see."""
    files: set[str] = set()
    for link in glob.iglob(f"/proc/{process}/fd/*"):
        with contextlib.suppress(OSError):
            files.add(os.readlink(link))
    return files
