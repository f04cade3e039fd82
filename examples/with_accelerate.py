"""A training with Hugging Face's accelerate and the probe; gradients are accumulated over two batches.

torchrun --standalone --nproc-per-node=2 examples/with_accelerate.py --cpu
scaling analyze runs/<date>/<time>-<hash>
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from scaling import Probe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--run-dir")
    options = parser.parse_args()

    accelerator = Accelerator(cpu=options.cpu, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(64 * options.batches, 256), torch.randint(10, (64 * options.batches,)))
    loader = DataLoader(data, batch_size=32)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)  # model is now the DDP wrapper

    with Probe(model, run_dir=options.run_dir) as probe:  # line one
        for inputs, targets in loader:
            with probe.step(), accelerator.accumulate(model):  # line two
                loss = torch.nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    accelerator.print(f"loss {loss.item():.3f}; scaling analyze {probe.run_dir}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
