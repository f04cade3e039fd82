"""A training in plain PyTorch with the probe in two lines.

torchrun --standalone --nproc-per-node=2 examples/plain_pytorch.py
scaling analyze runs/<date>/<time>-<hash>
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from scaling import Probe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--run-dir")
    parser.add_argument(
        "--late-ms", type=float, default=0, help="make the last rank late by this much in each step"
    )
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.manual_seed(0)

    width = options.width
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(4)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)

    data = TensorDataset(torch.randn(4096, width), torch.randint(10, (4096,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler, drop_last=True)

    step, epoch = 0, 0
    with Probe(ddp, run_dir=options.run_dir) as probe:  # line one
        while step < options.steps:
            sampler.set_epoch(epoch)
            epoch += 1
            for inputs, targets in loader:
                with probe.step():  # line two
                    if rank == world - 1 and options.late_ms:
                        time.sleep(options.late_ms / 1e3)
                    outputs = ddp(inputs.to(device))
                    loss = torch.nn.functional.cross_entropy(outputs, targets.to(device))
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                step += 1
                if step == options.steps:
                    break
    if rank == 0:
        print(f"{step} steps, loss {loss.item():.3f}; scaling analyze {probe.run_dir}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
