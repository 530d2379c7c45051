"""The TPU devices of this worker, and who holds them."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
from typing import Any, Mapping

from tpukit.agent.main import Home
from tpukit.agent.processes import Process


def devices(home: Home) -> set[str]:
    """Return the paths of the devices."""
    if home.emulated:
        return set(glob.glob(os.path.join(glob.escape(home.folder), "emulated-devices/*")))
    return set(glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*"))


def lock_file(home: Home) -> str:
    """Return the path of libtpu's lock file."""
    return os.path.join(home.temporary if home.emulated else "/tmp", "libtpu_lockfile")


def holders(paths: set[str], alive: Mapping[int, Process]) -> dict[int, Process]:
    """Return the processes that have one of these files open."""
    return {pid: process for pid, process in alive.items() if paths & process.open_files()}


def described(processes: Mapping[int, Process]) -> list[dict[str, Any]]:
    """Return processes as answers have them."""
    return [
        {"pid": pid, "job": process.job, "command": process.command(), "user": process.user()}
        for pid, process in sorted(processes.items())
    ]


def remove_lock(path: str) -> bool:
    """Remove libtpu's lock file unless somebody has the lock; return True if it was removed.

    libtpu leaves it behind and then refuses to start: jax-ml/jax#10192.
    """
    with contextlib.suppress(OSError), open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    return False
