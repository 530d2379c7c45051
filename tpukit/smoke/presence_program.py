"""Print one line `TPUKIT-PRESENT {json}` on this worker's chips, opening none of them.

    python3 -I -c PROGRAM

From sysfs and /dev: functions of Google's on the PCI bus (its network card is one, too) with the
driver that each is bound to, device files, libtpu's lock, free disk, the size of the kernel's log,
and libtpu by environment.
From /proc: a process or a listener of Google's vbarcontrolagent, which libtpu asks for the chips of
a v6e (docs/reference/real-workers.md).
"""

import glob
import json
import os
import shutil

_GOOGLE = "0x1ae0"
#: How /proc/net/tcp shows a listener (state 0A) on the agent's port, 8353.
_AGENT_PORT, _LISTENS = ":20A1", "0A"


def text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def functions() -> list:
    found = []
    # The first function of each device: later chips show more than one.
    for path in sorted(glob.glob("/sys/bus/pci/devices/*.0")):
        if text(f"{path}/vendor") != _GOOGLE:
            continue
        driver = os.path.basename(os.path.realpath(f"{path}/driver"))
        found.append(
            {
                "device": text(f"{path}/device"),
                "subsystem": text(f"{path}/subsystem_device"),
                "driver": "" if driver == "driver" else driver,
            }
        )
    return found


def agent() -> bool:
    """Return True if vbar_control_agent runs, or if something listens on its port."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        if os.path.basename(text(path).split("\0")[0]).startswith("vbar"):
            return True
    sockets = text("/proc/net/tcp").splitlines() + text("/proc/net/tcp6").splitlines()
    words = [line.split() for line in sockets]
    return any(each[1].endswith(_AGENT_PORT) and each[3] == _LISTENS for each in words)


def main() -> None:
    files = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
    disk = shutil.disk_usage(os.path.expanduser("~"))
    libraries = glob.glob(
        os.path.expanduser("~/.tpukit/venvs/*/lib/python*/site-packages/libtpu/libtpu.so")
    )
    seen = {
        "functions": functions(),
        "files": len(files),
        "agent": agent(),
        "lock": os.path.exists("/tmp/libtpu_lockfile"),
        "free_bytes": disk.free,
        "disk_bytes": disk.total,
        "kernel_log_bytes": size("/var/log/kern.log"),
        "libtpu": sorted(each.split("/.tpukit/venvs/")[1].split("/")[0] for each in libraries),
        "emulated": int(os.environ.get("TPUKIT_EMULATED_DEVICES") or 0),
    }
    print("\nTPUKIT-PRESENT", json.dumps(seen))


main()
