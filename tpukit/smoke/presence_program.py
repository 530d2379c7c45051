"""Print one line `TPUKIT-PRESENT {json}` on this worker's chips, opening none of them.

    python3 -I -c PROGRAM

From sysfs and /dev: functions of Google's on the PCI bus (its network card is one, too) with the
driver that each is bound to, device files, libtpu's lock, free disk, and libtpu by environment.
"""

import glob
import json
import os
import shutil

_GOOGLE = "0x1ae0"


def text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


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


def main() -> None:
    files = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
    disk = shutil.disk_usage(os.path.expanduser("~"))
    libraries = glob.glob(
        os.path.expanduser("~/.tpukit/venvs/*/lib/python*/site-packages/libtpu/libtpu.so")
    )
    seen = {
        "functions": functions(),
        "files": len(files),
        "lock": os.path.exists("/tmp/libtpu_lockfile"),
        "free_bytes": disk.free,
        "disk_bytes": disk.total,
        "libtpu": sorted(each.split("/.tpukit/venvs/")[1].split("/")[0] for each in libraries),
        "emulated": int(os.environ.get("TPUKIT_EMULATED_DEVICES") or 0),
    }
    print("\nTPUKIT-PRESENT", json.dumps(seen))


main()
