"""Print one line `TPUKIT-LOAD {json}` on what this worker is busy with, over so many seconds.

    python3 -I -c PROGRAM SECONDS

From /proc: anything that a system does not tell is left out. What the TPU does libtpu tells, from
0.0.42 on, to a Python of an environment that has it, while a program computes; each list has a
figure a chip.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
import time
from typing import Any

_METRICS = ("duty_cycle_pct", "tensorcore_util", "hbm_capacity_usage", "hbm_capacity_total")
_ASK = """
import json
from libtpu.sdk import tpumonitoring
found = {}
for name in %r:
    try:
        data = tpumonitoring.get_metric(name).data()
        found[name] = [float(str(each).split(":")[-1]) for each in data]
    except Exception:
        continue
print(json.dumps(found))
"""
_ASK_SECONDS = 10


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


def processor_times() -> tuple[int, int]:
    """Return the time that all processors had, and that they were busy, since the start."""
    times = [int(each) for each in read("/proc/stat").split("\n")[0].split()[1:9]]
    return sum(times), sum(times) - times[3] - times[4]


def bytes_moved() -> tuple[int, int]:
    """Return what all interfaces but loopback have received and sent."""
    received = sent = 0
    for line in read("/proc/net/dev").splitlines()[2:]:
        name, _, counts = line.partition(":")
        if name.strip() != "lo":
            fields = counts.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def memory() -> tuple[int, int]:
    lines = (line.split() for line in read("/proc/meminfo").splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    return sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"]


def chips() -> dict[str, Any]:
    """Return libtpu's figures, from the first environment whose libtpu has them."""
    pattern = os.path.expanduser("~/.tpukit/venvs/*/lib/python*/site-packages/libtpu/sdk*")
    for found in sorted(glob.glob(pattern)):
        python = os.path.join(found.split("/lib/python")[0], "bin", "python")
        try:
            asked = [python, "-I", "-c", _ASK % (_METRICS,)]
            done = subprocess.run(asked, capture_output=True, timeout=_ASK_SECONDS, check=True)
            return dict(json.loads(done.stdout))
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
    return {}


def main(seconds: float) -> None:
    (all_before, busy_before), moved_before = processor_times(), bytes_moved()
    began = time.monotonic()
    time.sleep(seconds)
    taken = time.monotonic() - began
    (all_after, busy_after), moved = processor_times(), bytes_moved()
    disk = shutil.disk_usage(os.path.expanduser("~"))
    used, total = memory()
    print(
        "\nTPUKIT-LOAD",
        json.dumps(
            {
                "processors": os.cpu_count() or 0,
                "busy": (busy_after - busy_before) / max(1, all_after - all_before),
                "load": os.getloadavg()[0],
                "memory_used": used,
                "memory_total": total,
                "disk_used": disk.used,
                "disk_total": disk.total,
                "received": (moved[0] - moved_before[0]) / taken,
                "sent": (moved[1] - moved_before[1]) / taken,
                "chips": chips(),
                "emulated": int(os.environ.get("TPUKIT_EMULATED_DEVICES") or 0),
            }
        ),
    )


main(float(sys.argv[1]))
