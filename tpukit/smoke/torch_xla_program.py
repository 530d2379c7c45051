"""The smoke test's computation in PyTorch/XLA, sent to workers before smoke_program.py."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tpukit.smoke.smoke_program import digest, operands

#: Packages; the report shows their versions.
PACKAGES = ("torch_xla", "torch", "accelerate", "transformers", "libtpu")


def prepare(emulated: int) -> None:
    """Force the platform; otherwise torch_xla only warns and takes the CPU (its runtime.py)."""
    os.environ["PJRT_DEVICE"] = "CPU" if emulated else "TPU"
    if emulated:
        os.environ["CPU_NUM_DEVICES"] = str(emulated)


def compute(workers: int, side: int) -> dict[str, Any]:
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
    # Only in SPMD mode does a process see all devices of its worker (pytorch/xla, spmd_basic).
    runtime.use_spmd()
    count = runtime.global_runtime_device_count()
    mesh = spmd.Mesh(numpy.arange(count), (count,), ("device",))

    def spread(tensor: "torch.Tensor") -> "torch.Tensor":
        moved = tensor.to(torch_xla.device())
        spmd.mark_sharding(moved, mesh, ("device",) + (None,) * (tensor.dim() - 1))
        return moved

    # A TPU multiplies float32 as bfloat16, in which these integers are exact, and adds float32; it
    # would round a product of bfloat16 tensors.
    left, right = (torch.from_numpy(matrix).to(torch.float32) for matrix in operands(side))
    factors = [spread(operand.repeat(count, 1, 1)) for operand in (left, right)]

    def multiply() -> list[str]:
        products = spmd.mark_sharding(torch.bmm(*factors), mesh, ("device", None, None))
        torch_xla.sync(wait=True)
        shards = [shard.data.numpy() for shard in products.local_shards]
        return [digest(shard) for shard in shards]

    total = spread(torch.arange(1, count + 1, dtype=torch.int32)).sum()
    torch_xla.sync(wait=True)
    return {
        "platform": runtime.device_type().lower(),
        "device_kind": "",
        "devices": runtime.addressable_runtime_device_count(),
        "global_devices": count,
        "process": runtime.process_index(),
        "processes": runtime.process_count(),
        "digests": list(zip(multiply(), multiply(), strict=True)),
        "global_sum": float(total.cpu()),
    }
