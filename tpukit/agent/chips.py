"""Facts about this worker's chips, disk, libtpu and interpreter, without opening a device."""

from __future__ import annotations

import glob
import os
import shutil
from typing import Any

from tpukit.agent.devices import device_files, lock_file
from tpukit.agent.main import Home, Request, say
from tpukit.agent.run_records import text

_GOOGLE = "0x1ae0"
#: How /proc/net/tcp shows a listener (state 0A) on port 8353.
_CONTROL_PORT, _LISTENS = ":20A1", "0A"
#: Google's healthAgent can fill the disk with it: docs/reference/real-workers.md.
KERNEL_LOG = "/var/log/kern.log"


def look_for_python(home: Home, request: Request) -> None:
    """Answer if the interpreter `path` exists, and the number of emulated devices."""
    path = os.path.join(home.path, request["path"])
    say({"there": os.access(path, os.X_OK), "emulated": home.emulated_devices})


def look_for_chips(home: Home, request: Request) -> None:
    """Answer the facts of sysfs, /dev and /proc about the chips, and other needs of libtpu.

    `functions` are Google's PCI functions, among them its network card. `control_agent` tells if
    Google's vbarcontrolagent runs, which libtpu needs for the chips of a v6e
    (docs/reference/real-workers.md).
    """
    disk = shutil.disk_usage(home.path)
    venvs = f"{home.folder}/venvs/"
    libraries = glob.glob(f"{venvs}*/lib/python*/site-packages/libtpu/libtpu.so")
    say(
        {
            "functions": _functions(),
            "files": len(device_files(home)),
            "control_agent": _has_control_agent(),
            "lock": os.path.exists(lock_file(home)),
            "free_bytes": disk.free,
            "disk_bytes": disk.total,
            "kernel_log_bytes": size(KERNEL_LOG),
            "libtpu": sorted(path[len(venvs) :].split("/")[0] for path in libraries),
            "emulated": home.emulated_devices,
        }
    )


def size(path: str) -> int:
    """Return the size of a file in bytes, 0 if there is none."""
    return os.path.getsize(path) if os.path.exists(path) else 0


def _functions() -> list[dict[str, Any]]:
    functions = []
    # The first function of each device: later chips show more than one.
    for path in sorted(glob.glob("/sys/bus/pci/devices/*.0")):
        if text(f"{path}/vendor") == _GOOGLE:
            driver = os.path.basename(os.path.realpath(f"{path}/driver"))
            functions.append(
                {
                    "device": text(f"{path}/device"),
                    "subsystem": text(f"{path}/subsystem_device"),
                    "driver": "" if driver == "driver" else driver,
                }
            )
    return functions


def _has_control_agent() -> bool:
    """Return True if vbar_control_agent runs, or if something listens on its port."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        if os.path.basename(text(path).split("\0")[0]).startswith("vbar"):
            return True
    sockets = text("/proc/net/tcp").splitlines() + text("/proc/net/tcp6").splitlines()
    rows = [line.split() for line in sockets]
    return any(row[1].endswith(_CONTROL_PORT) and row[3] == _LISTENS for row in rows)
