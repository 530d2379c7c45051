"""Steps that are compiled by libtpu, without a chip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import Tpukit

from tpukit.accelerators import AcceleratorType, all_types
from tpukit.errors import BadInput, TpukitError, VerificationFailed
from tpukit.fit.compiler import TrainingStep, fit, require, topology

TRAIN = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

def sharded(devices, width=1024):
    rows = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    def train(w, x):
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)
    w = jax.ShapeDtypeStruct((width, width), jnp.float32)
    return jax.jit(train), (w, jax.ShapeDtypeStruct((1024, width), jnp.float32, sharding=rows))

def large(devices):
    return sharded(devices, 65536)

def plain(devices):
    return (lambda x, scale: {"y": x @ x * scale}), (jnp.ones((512, 512)), 2.0)

def failing(devices):
    return 1 / 0

def odd(devices):
    return 3
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.mark.parametrize("text", ["train.py", "train.py:", ":step", "train.py:a b", "none.py:step"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        TrainingStep.parse(text)


def test_a_python_without_jax_is_named_with_the_command_that_installs_it(program: Path) -> None:
    step = TrainingStep.parse(f"{program}:sharded", sys.executable)
    with pytest.raises(BadInput) as caught:
        fit(step, AcceleratorType.parse("v6e-4"))
    assert f"{sys.executable} has no module jax" in caught.value.what
    assert caught.value.fix
    assert caught.value.fix.arguments[1:] == ("-m", "pip", "install", "jax", "libtpu")


def test_a_python_that_is_not_there_is_refused(program: Path) -> None:
    with pytest.raises(BadInput, match="cannot run /none/python"):
        fit(
            TrainingStep.parse(f"{program}:sharded", "/none/python"), AcceleratorType.parse("v6e-4")
        )


# With libtpu


@pytest.fixture(scope="module")
def python(libtpu_python: Path) -> str:
    return str(libtpu_python)


@pytest.fixture
def step(program: Path, python: str) -> Callable[[str], TrainingStep]:
    return lambda name: TrainingStep.parse(f"{program}:{name}", python)


@pytest.mark.full_size
def test_every_type_has_the_topology_that_libtpu_knows(python: str) -> None:
    """As many devices as our table says."""
    asked = {type_.name: topology(type_) for type_ in all_types()}
    program = """
import json, os, sys
os.environ.update(TPU_SKIP_MDS_QUERY="1", JAX_PLATFORMS="cpu", ALLOW_MULTIPLE_LIBTPU_LOAD="true")
from jax.experimental.topologies import get_topology_desc
asked = json.load(sys.stdin)
print(json.dumps({name: len(get_topology_desc(shape, "tpu", **options).devices)
                  for name, (shape, options) in asked.items()}))
"""
    done = subprocess.run(
        [python, "-c", program], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {type_.name: type_.devices for type_ in all_types()}


@pytest.mark.full_size
def test_a_step_that_fits_has_its_memory_and_collectives(
    step: Callable[[str], TrainingStep],
) -> None:
    result = fit(step("sharded"), AcceleratorType.parse("v6e-4"))
    assert result.fits
    # The weights twice, and the rows of one of four devices.
    assert 9 << 20 <= result.memory.total <= 32 << 20
    assert result.memory.collectives["all-reduce"] >= 1
    assert result.memory.buffers[0].shape == "f32[1024,1024]"
    assert result.available == 32 << 30


@pytest.mark.full_size
def test_a_step_that_is_too_large_has_its_largest_buffers(
    step: Callable[[str], TrainingStep],
) -> None:
    v6e, v5p = map(AcceleratorType.parse, ("v6e-4", "v5p-8"))
    result = fit(step("large"), v6e)
    assert not result.fits
    assert result.memory.total > result.available
    assert result.memory.buffers[0].shape == "f32[65536,65536]"
    assert "RESOURCE_EXHAUSTED" in result.refusal
    assert fit(step("large"), v5p).fits
    with pytest.raises(VerificationFailed, match="large does not fit on v6e-4"):
        require(step("large"), [v5p, v6e])


@pytest.mark.full_size
def test_a_function_that_is_not_jitted_and_real_arrays_will_do(
    step: Callable[[str], TrainingStep],
) -> None:
    result = fit(step("plain"), AcceleratorType.parse("v2-8"))
    assert result.fits
    assert 1 << 20 <= result.memory.total <= 8 << 20


@pytest.mark.full_size
@pytest.mark.parametrize(
    ("name", "why"), [("failing", "ZeroDivisionError: division by zero"), ("odd", "TypeError")]
)
def test_a_program_that_fails_is_no_step_that_is_too_large(
    step: Callable[[str], TrainingStep], name: str, why: str
) -> None:
    with pytest.raises(TpukitError) as caught:
        fit(step(name), AcceleratorType.parse("v6e-4"))
    assert caught.value.exit_code == 1
    assert why in caught.value.why


@pytest.mark.full_size
def test_the_command_names_the_smallest_type_and_up_refuses_a_smaller_one(
    program: Path, python: str, tmp_path: Path
) -> None:
    tpukit = Tpukit(tmp_path)
    large = f"{program}:large"
    types = ("--type", "v6e-4,v5p-8", "--python", python)
    document = tpukit.document("fit", large, *types)
    assert [result["fits"] for result in document["types"]] == [False, True]
    assert document["smallest"] == "v5p-8"
    with_jax = Tpukit(tmp_path, {"PATH": f"{Path(python).parent}:{os.defpath}"})
    with_jax.ends_with(10, "fit", large, "--type", "v6e-4")
    with_jax.succeeds("emulator", "start")
    refused = with_jax.ends_with(10, "--local", "up", "v6e-4", "demo", "--fits", large)
    assert f"{large} does not fit on v6e-4" in refused.stderr
    assert with_jax.slices("demo") == []
    with_jax.succeeds("emulator", "stop")
