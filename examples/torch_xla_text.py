"""Sentence pairs in PyTorch/XLA, as GLUE's tasks are: one length, one compilation, all devices.

Runs on each worker: `tpukit run NAME --with torch_xla -- python3 torch_xla_text.py`. One process
sees all devices of its worker (SPMD): no launcher, no process for each device.
"""

import os

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as spmd
import torch_xla.runtime as runtime

LENGTH, VOCABULARY, WIDTH, ROWS_PER_DEVICE, STEPS, RATE = 16, 32, 32, 32, 40, 0.01


def main() -> None:
    emulated = os.environ.get("TPUKIT_EMULATED_DEVICES")  # CPUs stand in, and torch_xla is told
    os.environ.update({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": emulated} if emulated else {})
    runtime.use_spmd()
    count = runtime.global_runtime_device_count()
    mesh = spmd.Mesh(np.arange(count), (count,), ("data",))
    torch.manual_seed(0)
    embedding, out = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(2 * WIDTH, 2)
    model = torch.nn.ModuleList([embedding, out]).to(torch_xla.device())
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.to(torch_xla.device())
        spmd.mark_sharding(moved, mesh, ("data",) + (None,) * (tensor.dim() - 1))
        return moved

    first = None
    for _ in range(STEPS):
        pairs, labels = (spread(each) for each in batch(ROWS_PER_DEVICE * count))
        optimizer.zero_grad()
        left, right = (embedding(pairs[:, side]).mean(1) for side in (0, 1))
        logits = out(torch.cat([left * right, (left - right).abs()], 1))
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # what was written down until here is compiled once, and runs now
        first = first or loss.item()
    print(
        f"{count} devices, batch {ROWS_PER_DEVICE * count}: loss {first:.3f} -> {loss.item():.3f}"
    )


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pairs of sentences, (rows, 2, LENGTH), and whether they have the same words."""
    pairs = torch.randint(0, VOCABULARY, (rows, 2, LENGTH))
    same = torch.randint(0, 2, (rows,))
    order = torch.rand(rows, LENGTH).argsort(1)
    shuffled = pairs[:, 0].gather(1, order)
    pairs[:, 1] = torch.where(same[:, None].bool(), shuffled, pairs[:, 1])
    return pairs, same


if __name__ == "__main__":
    main()
