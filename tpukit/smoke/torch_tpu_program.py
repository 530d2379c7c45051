"""The smoke test's computation in TorchTPU, sent to workers before smoke_program.py.

It follows the code of torch_tpu 0.2.0, and has not been tried on a TPU.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tpukit.smoke.smoke_program import digest, operands

#: Packages; the report shows their versions.
PACKAGES = ("torch_tpu", "torch", "libtpu")


def prepare(emulated: int) -> None:
    """Exit if there is no TPU, because the package has no other device."""
    if emulated:
        raise SystemExit("torch_tpu computes on TPUs only")
    os.environ["PJRT_DEVICE"] = "TPU"


def compute(workers: int, side: int) -> dict[str, Any]:
    import torch
    import torch_tpu  # noqa: F401  it registers the device "tpu"

    if workers > 1:
        raise SystemExit("this smoke test of torch_tpu is for slices of one worker")
    count = torch.tpu.device_count()
    devices = [torch.device("tpu", index) for index in range(count)]
    left, right = (torch.from_numpy(matrix).to(torch.float32) for matrix in operands(side))

    def multiply(device: "torch.device") -> str:
        product = left.to(device) @ right.to(device)
        return digest(product.cpu().numpy())

    total = torch.zeros((), device=devices[0])
    for index, device in enumerate(devices):
        total += torch.tensor(float(index + 1), device=device).to(devices[0])
    return {
        "platform": devices[0].type,
        "device_kind": "",
        "devices": count,
        "global_devices": count,
        "process": 0,
        "processes": 1,
        "digests": [[multiply(device), multiply(device)] for device in devices],
        "global_sum": float(total.cpu()),
    }
