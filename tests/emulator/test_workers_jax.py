"""JAX finds an emulated slice by itself, as it does on Cloud TPU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .crew import Crew, hired

pytestmark = pytest.mark.journey

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
jax.distributed.initialize()
from jax.sharding import Mesh, NamedSharding, PartitionSpec
n = jax.device_count()
mesh = Mesh(np.array(jax.devices()), ("all",))
split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("all",), ()))
numbers = np.arange(n, dtype=np.float32)
spread = jax.make_array_from_callback((n,), split, lambda index: numbers[index])
total = jax.jit(jnp.sum, out_shardings=whole)(spread)
print("seen", jax.process_index(), jax.process_count(), jax.local_device_count(), n, float(total))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jax")


@pytest.fixture(scope="module")
def crew(folder: Path) -> Iterator[Crew]:
    with hired(folder) as crew:
        yield crew


@pytest.fixture(scope="module")
def python(crew: Crew, folder: Path) -> str:
    """A virtual environment with JAX for CPUs, made on a worker and shared by all."""
    crew.allocate(node="projects/p/locations/us-central1-a/nodes/maker")
    crew.boot(node="projects/p/locations/us-central1-a/nodes/maker")
    made = subprocess.run(
        crew.words(f"python3 -m venv {folder}/env && {folder}/env/bin/pip install -q jax==0.10.2"),
        capture_output=True,
        timeout=900,
        check=False,
    )
    assert made.returncode == 0, made.stderr.decode()
    (folder / "program.py").write_text(PROGRAM)
    return f"{folder}/env/bin/python"


def run(crew: Crew, line: str) -> dict[int, list[float]]:
    """Run a line on every worker at once and return the numbers each one saw, by process index."""
    started = [
        subprocess.Popen(
            crew.words(line, index=index), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for index in range(len(crew.workers))
    ]
    outputs = [process.communicate(timeout=180)[0].decode() for process in started]
    seen = [re.search(r"^seen (.*)$", output, re.MULTILINE) for output in outputs]
    assert all(seen), "\n".join(outputs)
    rows = [[float(word) for word in found[1].split()] for found in seen if found]
    return {int(row[0]): row[1:] for row in rows}


def test_four_workers_sum_over_sixteen_devices_without_an_argument(crew, python, folder):
    crew.allocate(4, "projects/p/locations/us-central1-a/nodes/four")
    crew.boot("v5litepod-16", "projects/p/locations/us-central1-a/nodes/four")
    forced = "JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4"
    seen = run(crew, f"{forced} {python} {folder}/program.py")
    assert seen == {index: [4, 4, 16, 120] for index in range(4)}


def test_two_slices_of_one_machine_do_not_meet(crew, python, folder):
    """Both coordinators listen on port 8482, each on its own address."""
    started = []
    for node in ("left", "right"):
        crew.allocate(2, f"projects/p/locations/us-central1-a/nodes/{node}")
        crew.boot("v4-16", f"projects/p/locations/us-central1-a/nodes/{node}")
        lines = [crew.words(f"{python} {folder}/program.py", index=index) for index in (0, 1)]
        started += [subprocess.Popen(line, stdout=subprocess.PIPE) for line in lines]
    outputs = [process.communicate(timeout=180)[0].decode().split() for process in started]
    assert [output[-5:] for output in outputs] == [
        [str(i), "2", "4", "8", "28.0"] for i in (0, 1, 0, 1)
    ]


def test_a_slice_of_one_worker_initializes_too(crew, python, folder):
    crew.allocate(1, "projects/p/locations/us-central1-a/nodes/one")
    crew.boot("v3-8", "projects/p/locations/us-central1-a/nodes/one")
    assert run(crew, f"{python} {folder}/program.py") == {0: [1, 8, 8, 28]}


def test_jax_without_any_argument_lists_the_stand_in_devices(crew, python):
    crew.allocate(1, "projects/p/locations/us-central1-a/nodes/plain")
    crew.boot("v4-8", "projects/p/locations/us-central1-a/nodes/plain")
    assert crew.say(f"{python} -c 'import jax; print(len(jax.devices()))'") == "4"
