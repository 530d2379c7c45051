"""Compiled programs outlive the slice: after a preemption, JAX reads them and compiles nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.command_line import Tpukit
from support.processes import eventually

pytestmark = pytest.mark.journey

#: Appends a JSON line to a file: JAX's own counts and seconds.
PROGRAM = """\
import json
import sys
from collections import Counter

import jax
import jax.numpy as jnp

counts, seconds = Counter(), Counter()
jax.monitoring.register_event_listener(lambda name, **_: counts.update([name]))
jax.monitoring.register_event_duration_secs_listener(
    lambda name, took, **_: seconds.update({name: took})
)


@jax.jit
@jax.value_and_grad
def step(weights, batch):
    for weight in weights:
        batch = jnp.tanh(jnp.sort(batch @ weight / 8) + jnp.cumsum(batch / 64, axis=1))
    return (batch**2).mean()


weights = [jax.random.normal(jax.random.key(number), (64, 64)) for number in range(96)]
value, _ = step(weights, jnp.ones((32, 64)))
line = {
    "value": float(value),
    "hits": counts["/jax/compilation_cache/cache_hits"],
    "requests": counts["/jax/compilation_cache/compile_requests_use_cache"],
    "seconds": seconds["/jax/core/compile/backend_compile_duration"],
}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(line) + "\\n")
"""
#: Each start computes with the cache and then without it.
JOB = """\
python "$0/program.py" "$0/with" || exit
JAX_ENABLE_COMPILATION_CACHE=false python "$0/program.py" "$0/without" || exit
exec sleep 999
"""
#: Also programs that compile in less than a second, JAX's own limit.
EVERY = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0"
#: The folder outlives slices, as a bucket does.
PLACE, LOCAL = "TPUKIT_COMPILATION_CACHE", {"TPUKIT_LOCAL": "1"}
DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
MINE = ("run", "--env", f"{DIRECTORY}=mine")


@pytest.fixture
def portable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpukit]:
    """The program, and an emulator whose workers share this machine's files."""
    home = tmp_path_factory.mktemp("compiled")
    tpukit = Tpukit(home, {**LOCAL, PLACE: str(home / "cache")})
    tpukit.succeeds("emulator", "start", "--engine", "portable", "--create-seconds", "0.3")
    yield tpukit
    tpukit("emulator", "stop")


def place(tpukit: Tpukit, *words: str) -> str:
    """Return the folder of compiled programs that a command with the environment gets."""
    command = f'echo "at ${DIRECTORY}"'
    verb, *flags = words
    return tpukit.succeeds(verb, "demo", "--with", "jax", *flags, "--", command).stdout.strip()


def worker_home(tpukit: Tpukit) -> str:
    return tpukit.succeeds("ssh", "demo", "--", 'echo "$HOME"').stdout.strip()


def told(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_job_that_is_preempted_twice_compiles_once(portable: Tpukit, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "job.sh").write_text(JOB)
    portable.succeeds("create", "v3-8", "demo", "--spot")
    job = ("sh", "-c", '. "$0/job.sh"', str(tmp_path))
    watch = portable.start("watch", "demo", "--with", "jax", "--env", EVERY, "--", *job)
    for losses in range(3):
        if losses:
            portable.succeeds("emulator", "preempt", "demo")
        eventually(partial(ended, tmp_path / "without", losses + 1), 300)
    chosen, without_setting = f"at {portable.home}/cache", Tpukit(portable.home, LOCAL)
    assert place(portable, "run") == place(portable, "ssh") == chosen
    assert place(portable, *MINE) == "at mine"
    usual = f"at {worker_home(portable)}/.tpukit/compilation-cache"
    assert place(without_setting, "run") == usual
    watch.terminate()
    watch.communicate()
    first, *later = told(tmp_path / "with")
    assert first["hits"] == 0
    assert [start["hits"] for start in later] == [first["requests"]] * 2
    assert [start["requests"] for start in later] == [first["requests"]] * 2
    assert not any(start["hits"] for start in told(tmp_path / "without"))
    assert len({start["value"] for start in (first, *later, *told(tmp_path / "without"))}) == 1
    table(told(tmp_path / "with"), told(tmp_path / "without"))


def ended(file: Path, starts: int) -> bool:
    return len(told(file)) == starts


def table(with_: list[dict[str, float]], without: list[dict[str, float]]) -> None:
    lines = ["START  PROGRAMS  READ  SECONDS  WITHOUT A CACHE"]
    for number, (one, other) in enumerate(zip(with_, without, strict=True), 1):
        counts = f"{one['requests']:<10}{one['hits']:<6}"
        lines.append(f"{number:<7}{counts}{one['seconds']:<9.1f}{other['seconds']:.1f}")
    sys.stdout.write("\n".join(lines) + "\n")
