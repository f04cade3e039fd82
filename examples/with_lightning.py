"""A training with Lightning's Trainer and one line for the probe.

python examples/with_lightning.py --devices 2
scaling analyze runs/<date>/<time>-<hash>
"""

from __future__ import annotations

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from scaling.integrations.lightning import ScalingCallback


class Classifier(LightningModule):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--run-dir")
    options = parser.parse_args()

    samples = 32 * options.batches * options.devices
    data = TensorDataset(torch.randn(samples, 256), torch.randint(10, (samples,)))
    trainer = Trainer(
        accelerator="cpu",
        devices=options.devices,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[ScalingCallback(run_dir=options.run_dir)],  # the line
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=32))


if __name__ == "__main__":
    main()
