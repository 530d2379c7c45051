"""A running JAX program is profiled, and XProf shows its steps in a browser."""

from __future__ import annotations

import gzip
import json
import re
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.browser import needs_chromium, visited
from support.command_line import Finished, Tpukit
from support.emulated_workers import needs_root
from support.processes import eventually

pytestmark = pytest.mark.journey

#: It prints a line when its server listens, and then trains until it is ended.
PROGRAM = """\
import sys, time
import jax
import jax.numpy as jnp

jax.profiler.start_server(int(sys.argv[1]))
double = jax.jit(lambda weights: jnp.tanh(weights @ weights), inline=False)
weights = jnp.ones((256, 256))
print("training", flush=True)
for number in range(100_000):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        weights = double(weights).block_until_ready()
    time.sleep(0.01)
"""


@contextmanager
def training(tpukit: Tpukit, slice_: str, run: str, port: int) -> Iterator[None]:
    """Start the program on every worker, and yield when all of them train."""
    (tpukit.home / "train.py").write_text(PROGRAM)
    tpukit.succeeds("--local", "cp", "train.py", f"{slice_}:")
    line = ("--with", "jax", "--", "python", "train.py", str(port))
    tpukit.succeeds("--local", "run", slice_, "--detach", "--run-id", run, *line)
    count = len(tpukit.document("--local", "jobs", slice_, run)["jobs"])
    logs = ("--local", "logs", slice_, run)
    try:
        eventually(lambda: tpukit(*logs).stdout.count("training") == count, 120)
        yield
    finally:
        tpukit.succeeds("--local", "kill", slice_, run)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def xprof(tpukit: Tpukit, profiled: Finished) -> Iterator[str]:
    """Run the command that `profile` suggests, with uv of a worker and ports of its own."""
    (line,) = re.findall(r"^next: (uvx .*)$", profiled.stderr, re.MULTILINE)
    uvx = tpukit.succeeds("--local", "run", "demo", "--", "ls .tpukit/uv-*/bin/uvx; pwd").stdout
    program, home = uvx.split()
    ports = {"--port": free_port(), "--grpc_port": free_port()}
    words = [f"{home}/{program}", *line.split()[1:]]
    words += [word for flag, port in ports.items() for word in (flag, str(port))]
    with (tpukit.home / "xprof.log").open("w") as log, ExitStack() as ends:
        process = ends.enter_context(
            subprocess.Popen(words, cwd=tpukit.home, stdout=log, stderr=subprocess.STDOUT)
        )
        ends.callback(process.terminate)
        url = f"http://127.0.0.1:{ports['--port']}"

        def answers() -> bool:
            assert process.poll() is None, (tpukit.home / "xprof.log").read_text()
            try:
                return bool(read(url))
            except urllib.error.URLError:
                return False

        eventually(answers, 300)  # uv downloads it first
        yield url


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:
        content: bytes = answer.read()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def data(url: str, what: str, **given: str) -> Any:
    query = urllib.parse.urlencode(given)
    return json.loads(read(f"{url}/data/plugin/profile/{what}?{query}"))


@needs_chromium
def test_a_running_program_is_profiled_and_xprof_shows_its_steps_in_a_browser(
    tpukit: Tpukit, tmp_path: Path
) -> None:
    port = free_port()
    with training(tpukit, "demo", "trained", port):
        words = ("--local", "profile", "demo", "trained", "--port", str(port))
        done = tpukit.succeeds(*words, "--for", "1s")
        again = tpukit.succeeds("--local", "profile", "demo", "--port", str(port), "--for", "1s")
        (job,) = tpukit.document("--local", "jobs", "demo", "trained")["jobs"]
        assert job["state"] == "running"  # the program goes on
    assert "the traces show 8 CPU devices standing in for a TPU\n" in done.stderr
    sessions = [Path(text.strip()).parent.name for text in (done.stdout, again.stdout)]
    with xprof(tpukit, done) as url:
        assert sorted(data(url, "runs")) == sessions
        of = {"run": sessions[0], "tag": "trace_viewer", "host": "demo-worker-0"}
        names = {event.get("name") for event in data(url, "data", **of)["traceEvents"]}
        assert {"PjitFunction(<lambda>)", "wrapped_tanh"} <= names
        shown = visited(url, tmp_path)
    assert "demo-worker-0" in shown
    assert sessions[1] in shown  # the latest comes first
    assert "Device type : CPU" in shown
    step = re.search(r"Host Compute Time \(σ = [\d.]+ ms\) ([\d.]+) ms", shown)
    assert step, shown
    assert float(step[1]) > 0


@needs_root
@pytest.mark.full_size
def test_each_worker_has_a_trace_of_its_own_program(alone: Tpukit) -> None:
    """Each worker has its own loopback in this engine: the same port is another program's."""
    alone.succeeds("emulator", "start", "--engine", "namespaces", "--create-seconds", "0.2")
    alone.succeeds("--local", "up", "v4-16", "two", timeout=900)
    with training(alone, "two", "trained", 9012):
        done = alone.succeeds("--local", "profile", "two", "trained", "--for", "1s")
        one = alone.succeeds("--local", "profile", "two", "--worker", "1", "--for", "1s")
    names = sorted(alone.succeeds("--local", "run", "two", "--", "hostname").stdout.split()[1::2])
    paths = [alone.home / line for line in done.stdout.splitlines()]
    assert [path.name for path in paths] == [f"two-worker-{index}.xplane.pb" for index in (0, 1)]
    assert len({path.parent for path in paths}) == 1
    for path, own, other in zip(paths, names, reversed(names), strict=True):
        assert own.encode() in path.read_bytes()
        assert other.encode() not in path.read_bytes()
    assert Path(one.stdout.strip()).name == "two-worker-1.xplane.pb"
