"""The real Ray over two slices: tasks on every worker, a lost slice, the dashboard, the end."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from support.command_line import Tpukit
from support.processes import eventually

#: Ray and JAX on four workers.
pytestmark = pytest.mark.gigabytes

PROGRAM = Path(__file__).parents[2] / "examples/ray_tasks.py"


@pytest.fixture
def slices(tmp_path: Path) -> Iterator[Tpukit]:
    """Two slices of two workers."""
    tpukit = Tpukit(tmp_path, {"TPUKIT_LOCAL": "1"})
    tpukit.succeeds("emulator", "start", "--engine", "portable", "--create-seconds", "0.3")
    for name in ("one", "two"):
        tpukit.succeeds("create", "v4-16", name)
    yield tpukit
    tpukit("emulator", "stop")


def submit(tpukit: Tpukit, variables: dict[str, str]) -> str:
    """Submit the program with Ray's own client, and return what it printed."""
    client = next(tpukit.home.glob("tpukit/state/emulator/workers/*/home/*/.tpukit/venvs/ray"))
    words = [client / "bin/ray", "job", "submit", "--working-dir", "program", "--"]
    done = subprocess.run(
        [*words, "python", PROGRAM.name],
        env={"PATH": os.environ["PATH"], "HOME": str(tpukit.home), **variables},
        cwd=tpukit.home,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def status_without_token(address: str) -> int:
    connection = http.client.HTTPConnection(str(urlsplit(address).netloc), timeout=30)
    connection.request("GET", "/api/jobs/")
    return connection.getresponse().status


def recovered(tpukit: Tpukit) -> bool:
    """Return True if the watched slice was lost, and joined again."""
    (watch,) = tpukit.document("watch", "--list")["watches"]
    events = [event["event"] for event in watch["history"]]
    return "preempted" in events and events[-1] == "ready"


def rays(tpukit: Tpukit) -> list[psutil.Process]:
    return [
        process
        for process in tpukit.processes()
        if any("ray" in word for word in process.cmdline()[:2])
    ]


def test_tasks_run_on_all_workers_also_after_a_preemption(slices: Tpukit) -> None:
    (slices.home / "program").mkdir()
    shutil.copy(PROGRAM, slices.home / "program")
    nodes = slices.document("ray", "up", "one,two")["nodes"]
    assert [node["alive"] for node in nodes] == [True] * 4
    assert [node["resources"]["TPU"] for node in nodes] == [4.0] * 4
    used = sum(process.memory_info().rss for process in rays(slices)) / 1e9
    cpu = sum(sum(process.cpu_times()[:2]) for process in rays(slices))
    sys.stdout.write(f"Ray on four workers: {used:.1f} GB, {cpu:.0f} s of CPU since its start\n")
    with slices.start("ray", "dashboard", "one", "--port", "0") as dashboard:
        assert dashboard.stdout
        lines = [dashboard.stdout.readline() for _ in range(3)]
        pairs = [line.removeprefix("export ").strip().partition("=") for line in lines]
        variables = {name: value for name, _, value in pairs}
        assert status_without_token(variables["RAY_API_SERVER_ADDRESS"]) == 401
        assert "nodes 4" in submit(slices, variables)
        slices.ends_with(5, "ray", "up", "two")
        slices.succeeds("emulator", "preempt", "two")
        slices.ends_with(1, "ray", "status", "one,two")
        slices.succeeds("delete", "two", "--yes")
        slices.succeeds("create", "v4-16", "two")
        slices.succeeds("ray", "up", "one,two")
        assert "nodes 4" in submit(slices, variables)
        slices.succeeds("watch", "two", "--ray", "one,two", "--detach")
        slices.succeeds("emulator", "preempt", "two")
        eventually(lambda: recovered(slices), 300), slices.succeeds("watch", "--list", "two")
        assert "nodes 4" in submit(slices, variables)
        slices.succeeds("watch", "two", "--stop")
        dashboard.terminate()
    slices.succeeds("ray", "down", "one,two")
    # A process that Ray itself has started ends as soon as it misses its node.
    eventually(lambda: not rays(slices), 30), rays(slices)
