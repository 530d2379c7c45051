"""The smoke test's computation in JAX; a worker gets smoke_program.py after it."""

import os

#: Packages whose versions the report shows.
PACKAGES = ("jax", "jaxlib", "libtpu")


def prepare(emulated: int) -> None:
    """Force the platform before jax is imported.

    Without JAX_PLATFORMS jax falls back to the CPU and exits with 0 (jax-ml/jax issue 17624).
    """
    os.environ["JAX_PLATFORMS"] = "cpu" if emulated else "tpu"
    if emulated:
        flags = os.environ.get("XLA_FLAGS", "")
        count = f"--xla_force_host_platform_device_count={emulated}"
        os.environ["XLA_FLAGS"] = f"{flags} {count}".strip()


def compute(workers: int, side: int) -> dict:
    import jax
    import jax.numpy as jnp
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if workers > 1:
        jax.distributed.initialize()
    devices, ones = jax.devices(), numpy.ones((side, side), jnp.bfloat16)

    def multiply(device: jax.Device) -> float:
        square = jax.device_put(ones, device)
        return float((square @ square).astype(jnp.float32).sum())

    mesh = Mesh(devices, ("device",))
    numbers = numpy.arange(1, len(devices) + 1, dtype=numpy.int32)
    spread = jax.make_array_from_callback(
        numbers.shape, NamedSharding(mesh, PartitionSpec("device")), lambda index: numbers[index]
    )
    total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(spread)
    return {
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "devices": jax.local_device_count(),
        "global_devices": jax.device_count(),
        "process": jax.process_index(),
        "processes": jax.process_count(),
        "matmuls": [multiply(device) for device in jax.local_devices()],
        "global_sum": float(total),
    }
