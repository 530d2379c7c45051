"""The smoke test's computation in JAX; a worker gets smoke_program.py after it."""

import os

#: Packages whose versions the report shows.
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


def compute(workers: int, side: int) -> dict:
    import jax
    import jax.numpy as jnp
    import numpy

    if workers > 1:
        jax.distributed.initialize()
    devices, own = jax.devices(), jax.local_devices()
    left, right = (
        numpy.frombuffer(words, numpy.int16).reshape(shape).astype(jnp.bfloat16)
        for words, shape in operands(side)  # noqa: F821  smoke_program.py
    )

    def multiply(device: jax.Device) -> str:
        factors = jax.device_put((left, right), device)
        product = jnp.matmul(*factors, preferred_element_type=jnp.float32)
        return digest(numpy.asarray(product))  # noqa: F821  smoke_program.py

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
        "memory_bytes": [int((each.memory_stats() or {}).get("bytes_limit", 0)) for each in own],
        "global_sum": float(summed.sum()),
        "missing": [index for index, number in enumerate(summed.tolist()) if number != index + 1],
        "ring": [received[device] for device in own],
    }


def exchange(devices: list) -> tuple:
    """Return what the devices' numbers add up to, and what each got from the one before it.

    Device i holds i + 1, in a row of its own that is 0 elsewhere: in the sum of the rows each
    device's part can be seen.
    """
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    count = len(devices)
    rows = numpy.diag(numpy.arange(1, count + 1, dtype=numpy.int32))
    mesh, split = Mesh(numpy.array(devices), ("device",)), PartitionSpec("device")
    spread = jax.make_array_from_callback(
        rows.shape, NamedSharding(mesh, split), lambda index: rows[index]
    )

    def step(row: jax.Array) -> tuple:
        ring = [(index, (index + 1) % count) for index in range(count)]
        return jax.lax.psum(row, "device")[0], jax.lax.ppermute(row, "device", ring)

    whole = PartitionSpec()
    shared = jax.shard_map(step, mesh=mesh, in_specs=split, out_specs=(whole, split))
    summed, received = jax.jit(shared)(spread)
    numbers = {each.device: int(each.data.sum()) for each in received.addressable_shards}
    return numpy.asarray(summed), numbers
