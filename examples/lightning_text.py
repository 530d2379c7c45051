"""A LightningModule that PyTorch Lightning trains on the TPU of one worker.

Runs on the worker: `tpukit run NAME --with lightning -- python3 lightning_text.py`. In tpukit's
emulator it has one device: torch_xla's processes for several do not meet on CPUs.
"""

import os

import lightning
import torch
from lightning.pytorch.accelerators import XLAAccelerator
from torch.utils.data import DataLoader, TensorDataset

ROWS, WIDTH, BATCH, RATE, EPOCHS = 512, 8, 32, 0.02, 3


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(WIDTH, 2)

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        inputs, wanted = batch
        loss = torch.nn.functional.cross_entropy(self.model(inputs), wanted)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=RATE)


class Emulated(XLAAccelerator):
    """One CPU behind PyTorch/XLA; Lightning's own accelerator looks for chips first."""

    is_available = staticmethod(lambda: True)
    parse_devices = staticmethod(int)
    get_parallel_devices = staticmethod(lambda count: [torch.device("xla", 0)])


def main() -> None:
    emulated = "TPUKIT_EMULATED_DEVICES" in os.environ
    os.environ.update({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"} if emulated else {})
    lightning.seed_everything(0)
    rows = torch.randn(ROWS, WIDTH)
    labels = (rows.sum(1) > 0).long()
    # drop_last: another shape at the end of an epoch would be compiled anew.
    data = DataLoader(TensorDataset(rows, labels), BATCH, shuffle=True, drop_last=True)
    trainer = lightning.Trainer(
        accelerator=Emulated() if emulated else "tpu",
        devices=1 if emulated else "auto",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), data)
    if trainer.is_global_zero:
        count, loss = trainer.world_size, float(trainer.callback_metrics["loss"])
        print(f"{count} devices: loss {loss:.3f}")


if __name__ == "__main__":
    main()
