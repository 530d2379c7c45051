"""The smoke test's computation in JAX, sent to workers before smoke_program.py."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

    from tpukit.smoke.smoke_program import digest, operands

#: Packages; the report shows their versions.
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "libtpu")


def prepare(emulated: int) -> None:
    """Force the platform before jax is imported.

    Without JAX_PLATFORMS jax falls back to the CPU and exits with 0 (jax-ml/jax issue 17624).
    """
    os.environ["JAX_PLATFORMS"] = "cpu" if emulated else "tpu"
    if emulated:
        flags = os.environ.get("XLA_FLAGS", "")
        count = f"--xla_force_host_platform_device_count={emulated}"
        os.environ["XLA_FLAGS"] = f"{flags} {count}".strip()


def compute(workers: int, side: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import numpy

    if workers > 1:
        jax.distributed.initialize()
    devices, own = jax.devices(), jax.local_devices()
    left, right = (matrix.astype(jnp.bfloat16) for matrix in operands(side))

    def multiply(device: jax.Device) -> str:
        factors = jax.device_put((left, right), device)
        return digest(numpy.asarray(product(*factors)))

    summed, received = exchange(devices)
    return {
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "devices": jax.local_device_count(),
        "global_devices": jax.device_count(),
        "process": jax.process_index(),
        "processes": jax.process_count(),
        "indices": [devices.index(device) for device in own],
        "digests": [[multiply(device), multiply(device)] for device in own],
        "memory_bytes": [memory_stats(device).get("bytes_limit") for device in own],
        "global_sum": float(summed.sum()),
        "missing": [index for index, number in enumerate(summed.tolist()) if number != index + 1],
        "ring": [received[device] for device in own],
    }


def product(left: "jax.Array", right: "jax.Array") -> "jax.Array":
    """Return the float32 product of bfloat16 matrices."""
    import jax.numpy as jnp

    return jnp.matmul(left, right, preferred_element_type=jnp.float32)


def memory_stats(device: "jax.Device") -> dict[str, int]:
    """Return a device's memory statistics, or an empty dict.

    On some runtimes `memory_stats` returns None or raises (AI-Hypercomputer/maxtext pull request
    739).
    """
    try:
        return device.memory_stats() or {}
    except Exception:
        return {}


def exchange(devices: "list[jax.Device]") -> "tuple[Any, dict[jax.Device, int]]":
    """Return the sum of the devices' rows, and the number that each got from the device before it.

    The row of device i has i + 1 at place i and 0 elsewhere, so the sum shows each device's part.
    """
    import jax
    import numpy

    rows: Any = numpy.diag(numpy.arange(1, len(devices) + 1, dtype=numpy.int32))
    shared, spread = exchanging(devices)
    begin = jax.make_array_from_callback(rows.shape, spread, lambda index: rows[index])
    summed, received = shared(begin)
    numbers = {shard.device: int(shard.data.sum()) for shard in received.addressable_shards}
    return numpy.asarray(summed), numbers


def exchanging(devices: "list[jax.Device]") -> tuple[Any, Any]:
    """Return the compiled exchange over all devices, and the sharding of its argument."""
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    count = len(devices)
    mesh, split = Mesh(numpy.array(devices), ("device",)), PartitionSpec("device")

    def step(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        ring = [(index, (index + 1) % count) for index in range(count)]
        return jax.lax.psum(row, "device")[0], jax.lax.ppermute(row, "device", ring)

    whole = PartitionSpec()
    shared = jax.shard_map(step, mesh=mesh, in_specs=split, out_specs=(whole, split))
    return jax.jit(shared), NamedSharding(mesh, split)
