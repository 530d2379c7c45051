"""Compute on every device of this worker and print what came out as one `TPUKIT-SMOKE {json}` line.

Runs on a worker with the provisioned interpreter, which reads it from standard input:

    python - FRAMEWORK WORKERS SECONDS

It ends by itself after SECONDS (with a traceback of where it hung), and when the client is gone.
"""

import faulthandler
import importlib.metadata
import json
import os
import platform
import sys
import threading
import time

SIDE = 256
#: A product of ones: each of SIDE x SIDE elements is SIDE. 2**24 is exact in bfloat16 and float32.
MATMUL = float(SIDE**3)


def prepare_jax(emulated: int) -> None:
    """Force the platform before jax is imported.

    Without JAX_PLATFORMS jax falls back to the CPU and exits with 0 (jax-ml/jax issue 17624).
    """
    os.environ["JAX_PLATFORMS"] = "cpu" if emulated else "tpu"
    if emulated:
        flags = os.environ.get("XLA_FLAGS", "")
        count = f"--xla_force_host_platform_device_count={emulated}"
        os.environ["XLA_FLAGS"] = f"{flags} {count}".strip()


def compute_jax(workers: int) -> dict:
    import jax
    import jax.numpy as jnp
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if workers > 1:
        jax.distributed.initialize()
    devices, ones = jax.devices(), numpy.ones((SIDE, SIDE), jnp.bfloat16)

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


def prepare_torch_xla(emulated: int) -> None:
    """Force the platform: otherwise torch_xla takes the CPU with a warning (its runtime.py)."""
    os.environ["PJRT_DEVICE"] = "CPU" if emulated else "TPU"
    if emulated:
        os.environ["CPU_NUM_DEVICES"] = str(emulated)


def compute_torch_xla(workers: int) -> dict:
    import numpy
    import torch
    import torch_xla
    import torch_xla.distributed.spmd as spmd
    import torch_xla.runtime as runtime

    if workers > 1 and runtime.device_type() == "CPU":
        raise SystemExit(
            "torch_xla joins several workers on TPUs only: "
            "an emulated slice of several workers cannot run this smoke test"
        )
    # One process sees all devices of its worker only in SPMD mode (pytorch/xla docs, spmd_basic).
    runtime.use_spmd()
    count = runtime.global_runtime_device_count()
    mesh = spmd.Mesh(numpy.arange(count), (count,), ("device",))

    def spread(tensor: "torch.Tensor") -> "torch.Tensor":
        moved = tensor.to(torch_xla.device())
        spmd.mark_sharding(moved, mesh, ("device",) + (None,) * (tensor.dim() - 1))
        return moved

    squares = spread(torch.ones(count, SIDE, SIDE, dtype=torch.bfloat16))
    sums = torch.bmm(squares, squares).to(torch.float32).sum(dim=(1, 2))
    products = spmd.mark_sharding(sums, mesh, ("device",))
    total = spread(torch.arange(1, count + 1, dtype=torch.int32)).sum()
    torch_xla.sync(wait=True)
    return {
        "platform": runtime.device_type().lower(),
        "device_kind": "",
        "devices": runtime.addressable_runtime_device_count(),
        "global_devices": count,
        "process": runtime.process_index(),
        "processes": runtime.process_count(),
        "matmuls": [float(shard.data.sum()) for shard in products.local_shards],
        "global_sum": float(total.cpu()),
    }


FRAMEWORKS = {
    "jax": (prepare_jax, compute_jax, ("jax", "jaxlib", "libtpu")),
    "torch_xla": (prepare_torch_xla, compute_torch_xla, ("torch_xla", "torch", "libtpu")),
}


def versions(names: tuple) -> dict:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**found, "python": platform.python_version()}


def say(line: str = "") -> None:
    """Write a line of its own, whatever a framework has left unfinished, in one system call."""
    os.write(1, f"\n{line}\n".encode())


def end_with_the_client() -> None:
    """End this process once nobody reads it: an orphan would keep the TPU busy."""
    while True:
        time.sleep(2)
        try:
            say()
        except OSError:
            os._exit(1)


def main(framework: str, workers: int, seconds: float) -> int:
    started = time.monotonic()
    faulthandler.dump_traceback_later(seconds, exit=True)
    threading.Thread(target=end_with_the_client, daemon=True).start()
    emulated = int(os.environ.get("TPUKIT_EMULATED_DEVICES") or 0)
    prepare, compute, packages = FRAMEWORKS[framework]
    prepare(emulated)
    seen = compute(workers)
    count = seen["global_devices"]
    numbers_hold = (
        len(seen["matmuls"]) == seen["devices"]
        and all(value == MATMUL for value in seen["matmuls"])
        and seen["global_sum"] == count * (count + 1) / 2
    )
    report = {
        "framework": framework,
        "versions": versions(packages),
        "emulated": emulated,
        **seen,
        "numbers_hold": numbers_hold,
        "seconds": time.monotonic() - started,
    }
    say("TPUKIT-SMOKE " + json.dumps(report))
    faulthandler.cancel_dump_traceback_later()
    return 0 if numbers_hold else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
