"""The load of this worker, from /proc and from libtpu."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import time
from typing import Any

from tpukit.agent.main import Home, Request, say

_METRICS = ("duty_cycle_pct", "tensorcore_util", "hbm_capacity_usage", "hbm_capacity_total")
#: A program for an environment with libtpu 0.0.42 or later; it needs a program that computes.
_ASK = f"""
import json
from libtpu.sdk import tpumonitoring
figures = {{}}
for name in {_METRICS!r}:
    try:
        data = tpumonitoring.get_metric(name).data()
        figures[name] = [float(str(figure).split(":")[-1]) for figure in data]
    except Exception:
        continue
print(json.dumps(figures))
"""
_ASK_SECONDS = 10


def sample_load(home: Home, request: Request) -> None:
    """Answer the load over so many `seconds`; each metric in `chips` has one value per chip."""
    (all_before, busy_before), moved_before = _processor_times(), _bytes_moved()
    began = time.monotonic()
    time.sleep(request["seconds"])
    taken = time.monotonic() - began
    (all_after, busy_after), moved = _processor_times(), _bytes_moved()
    disk = shutil.disk_usage(home.path)
    used, total = _memory()
    say(
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
            "chips": _chips(home),
            "emulated": home.emulated_devices,
        }
    )


def _processor_times() -> tuple[int, int]:
    """Return the total and the busy time of all processors since boot."""
    times = [int(word) for word in _read("/proc/stat").split("\n")[0].split()[1:9]]
    return sum(times), sum(times) - times[3] - times[4]


def _bytes_moved() -> tuple[int, int]:
    """Return the bytes that all interfaces except loopback have received and sent."""
    received = sent = 0
    for line in _read("/proc/net/dev").splitlines()[2:]:
        name, _, counts = line.partition(":")
        if name.strip() != "lo":
            fields = counts.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def _memory() -> tuple[int, int]:
    lines = (line.split() for line in _read("/proc/meminfo").splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    return sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"]


def _chips(home: Home) -> Any:
    """Return the metrics of libtpu, from the first environment that provides them."""
    pattern = f"{home.folder}/venvs/*/lib/python*/site-packages/libtpu/sdk*"
    for path in sorted(glob.glob(pattern)):
        python = os.path.join(path.split("/lib/python")[0], "bin", "python")
        try:
            asked = [python, "-I", "-c", _ASK]
            done = subprocess.run(asked, capture_output=True, timeout=_ASK_SECONDS, check=True)
            return json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
    return {}


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
