"""A plain PyTorch loop that Accelerate takes to the devices of one worker.

Runs on the worker: `tpukit run NAME --with accelerate -- accelerate launch --tpu
--main_training_function main accelerate_text.py` (Accelerate 1.15.0 needs the function's name). In
tpukit's emulator it has one device: torch_xla's processes for several do not meet on CPUs.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

ROWS, WIDTH, ROWS_PER_DEVICE, RATE_PER_DEVICE, EPOCHS = 512, 8, 32, 0.02, 3


def main() -> None:
    accelerator = Accelerator()
    set_seed(0)
    rows = torch.randn(ROWS, WIDTH)
    labels = (rows.sum(1) > 0).long()
    # drop_last: another shape at the end of an epoch would be compiled anew.
    data = DataLoader(TensorDataset(rows, labels), ROWS_PER_DEVICE, shuffle=True, drop_last=True)
    model = torch.nn.Linear(WIDTH, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE_PER_DEVICE * accelerator.num_processes)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    first = None
    for _ in range(EPOCHS):
        for inputs, wanted in data:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), wanted)
            accelerator.backward(loss)
            optimizer.step()
            first = first or loss.item()
    if accelerator.is_main_process:
        count = accelerator.num_processes
        print(f"{count} devices: loss {first:.3f} -> {loss.item():.3f}")


if __name__ == "__main__":
    main()
