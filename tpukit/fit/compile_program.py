"""Compile a user's step for a TPU topology, with libtpu and without a chip.

    python compile_program.py FILE FUNCTION RESULT DUMPS TOPOLOGY OPTIONS

It runs with the user's Python. FUNCTION of FILE gets the topology's devices and returns a function
and its arguments; an argument may be just a shape. Arguments without a sharding are copied to every
device. RESULT becomes a JSON document, and DUMPS the folder of what the compiler writes about the
memory. OPTIONS are a JSON object for `topologies.get_topology_desc`.
"""

import json
import os
import runpy
import sys
import time
from typing import Any

# It asks for no metadata server, no chip and no lock: other programs may use libtpu, too.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "true"


def main(file: str, function: str, result: str, dumps: str, topology: str, options: str) -> None:
    try:
        import jax
        import libtpu  # noqa: F401
    except ImportError as error:
        _write(result, {"missing": error.name or str(error)})
        return
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(topology, "tpu", **json.loads(options)).devices
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    names = runpy.run_path(file)
    if function not in names:
        _write(result, {"lacks": function})
        return
    step, arguments = names[function](list(devices))
    lowered = (step if hasattr(step, "lower") else jax.jit(step)).lower(
        *_placed(arguments, devices)
    )
    began = time.monotonic()
    document = {"devices": len(devices), "fits": True, "why": ""}
    try:
        lowered.compile(compiler_options={"xla_dump_to": dumps})
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        document.update(fits=False, why=str(error).partition("\n")[0])
    _write(result, {**document, "seconds": time.monotonic() - began})


def _placed(arguments: Any, devices: Any) -> Any:
    """Return the arguments as shapes on the topology's devices."""
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    own = set(devices)
    everywhere = NamedSharding(Mesh(numpy.array(devices), ("device",)), PartitionSpec())

    def placed(argument: Any) -> Any:
        sharding = getattr(argument, "sharding", None)
        if sharding is None or not own.issuperset(sharding.device_set):
            sharding = everywhere
        shape = jax.eval_shape(lambda: argument) if numpy.isscalar(argument) else argument
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    return jax.tree.map(placed, tuple(arguments))


def _write(result: str, document: object) -> None:
    with open(result, "w", encoding="utf-8") as file:
        json.dump(document, file)


main(*sys.argv[1:])
