"""The TPU devices of this worker, and the processes that have them open."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
from typing import Any, Mapping

from tpukit.agent.live_processes import Process
from tpukit.agent.main import Home
from tpukit.agent.run_records import is_attached


def device_files(home: Home) -> set[str]:
    """Return the files of the devices: /dev/accelN on v2 to v4, /dev/vfio/N from v5e on.

    Source: docs/reference/real-workers.md.
    """
    if home.emulated:
        return set(glob.glob(f"{home.folder}/emulated-devices/*"))
    return {*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")}


def open_files(process: str = "[0-9]*") -> set[str]:
    """Return the files that a process, or any process, has open, if this user may see them."""
    files: set[str] = set()
    for link in glob.iglob(f"/proc/{process}/fd/*"):
        with contextlib.suppress(OSError):
            files.add(os.readlink(link))
    return files


def holders(files: set[str], alive: Mapping[int, Process]) -> dict[int, Process]:
    """Return the processes that have one of these files open."""
    return {pid: process for pid, process in alive.items() if files & open_files(str(pid))}


def described(processes: Mapping[int, Process]) -> list[dict[str, Any]]:
    """Return processes in the form of answers."""
    return [
        {
            "pid": pid,
            "job": process.job,
            "attached": is_attached(process.job),
            "command": process.command(),
            "user": process.user(),
        }
        for pid, process in sorted(processes.items())
    ]


def lock_file(home: Home) -> str:
    """Return the path of libtpu's lock file."""
    return os.path.join(home.temporary if home.emulated else "/tmp", "libtpu_lockfile")


def remove_lock(path: str) -> bool:
    """Remove libtpu's lock file unless a process has the lock; return True if it was removed.

    libtpu leaves it behind and then refuses to start: jax-ml/jax#10192.
    """
    with contextlib.suppress(OSError), open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    return False
