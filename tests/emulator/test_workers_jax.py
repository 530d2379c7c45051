"""JAX finds an emulated slice by itself, as it does on Cloud TPU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.emulated_workers import JAX_SUM, EmulatedWorkers, emulated_workers

pytestmark = pytest.mark.journey


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jax")


@pytest.fixture(scope="module")
def workers(folder: Path) -> Iterator[EmulatedWorkers]:
    with emulated_workers(folder) as workers:
        yield workers


@pytest.fixture(scope="module")
def python(jax_home: Path, folder: Path) -> str:
    """The interpreter of a virtual environment with JAX for CPUs."""
    (folder / "program.py").write_text(JAX_SUM)
    (folder / "venvs").symlink_to(jax_home / "provisioned/.tpukit/venvs")
    return f"{jax_home}/.tpukit/venvs/jax/bin/python"


def provision(workers: EmulatedWorkers, folder: Path) -> None:
    """Let every worker have the environment below its home folder, as after `tpukit provision`."""
    for index in range(len(workers.records)):
        link = f"mkdir -p .tpukit && ln -sfn {folder}/venvs .tpukit/venvs"
        workers.output(link, index=index)


def run(workers: EmulatedWorkers, line: str) -> dict[int, list[float]]:
    """Run a line on every worker at once and return the numbers each one saw, by process index."""
    started = [
        subprocess.Popen(
            workers.words(line, index=index), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for index in range(len(workers.records))
    ]
    outputs = [process.communicate(timeout=180)[0].decode() for process in started]
    seen = [re.search(r"^seen (.*)$", output, re.MULTILINE) for output in outputs]
    assert all(seen), "\n".join(outputs)
    rows = [[float(word) for word in found[1].split()] for found in seen if found]
    return {int(row[0]): row[1:] for row in rows}


def test_four_workers_sum_over_sixteen_devices_without_an_argument(workers, python, folder):
    workers.allocate(4, "projects/p/locations/us-central1-a/nodes/four")
    workers.boot("v5litepod-16", "projects/p/locations/us-central1-a/nodes/four")
    provision(workers, folder)
    forced = "JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4"
    seen = run(workers, f"{forced} {python} {folder}/program.py")
    assert seen == {index: [4, 4, 16, 120] for index in range(4)}


@pytest.mark.full_size
def test_two_slices_of_one_machine_do_not_meet(workers, python, folder):
    """Both coordinators listen on port 8482, each on its own address."""
    started = []
    for node in ("left", "right"):
        workers.allocate(2, f"projects/p/locations/us-central1-a/nodes/{node}")
        workers.boot("v4-16", f"projects/p/locations/us-central1-a/nodes/{node}")
        provision(workers, folder)
        lines = [workers.words(f"{python} {folder}/program.py", index=index) for index in (0, 1)]
        started += [subprocess.Popen(line, stdout=subprocess.PIPE) for line in lines]
    outputs = [process.communicate(timeout=180)[0].decode().split() for process in started]
    assert [output[-5:] for output in outputs] == [
        [str(i), "2", "4", "8", "28.0"] for i in (0, 1, 0, 1)
    ]


def test_a_slice_of_one_worker_initializes_too(workers, python, folder):
    workers.allocate(1, "projects/p/locations/us-central1-a/nodes/one")
    workers.boot("v3-8", "projects/p/locations/us-central1-a/nodes/one")
    provision(workers, folder)
    assert run(workers, f"{python} {folder}/program.py") == {0: [1, 8, 8, 28]}


def test_jax_without_any_argument_lists_the_stand_in_devices(workers, python):
    workers.allocate(1, "projects/p/locations/us-central1-a/nodes/plain")
    workers.boot("v4-8", "projects/p/locations/us-central1-a/nodes/plain")
    assert workers.output(f"{python} -c 'import jax; print(len(jax.devices()))'") == "4"
