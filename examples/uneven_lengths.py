"""Sentences of unequal length, padded to the longest of their batch: ranks wait for the one with the longest.

torchrun --standalone --nproc-per-node=2 examples/uneven_lengths.py
torchrun --standalone --nproc-per-node=2 examples/uneven_lengths.py --bucket
scaling analyze runs/<date>/<time>-<hash>
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

WORDS, POOL = 1000, 64
"""Different words, and for how many steps sentences are sorted by length together."""


def batches(
    lengths: list[int], batch: int, rank: int, world: int, seed: int, *, bucket: bool
) -> Iterator[list[int]]:
    """The lengths of one rank's sentences, batch by batch. Every rank draws the same order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    for first in range(0, len(order) - POOL * batch * world + 1, POOL * batch * world):
        pool = [lengths[index] for index in order[first : first + POOL * batch * world]]
        if bucket:  # neighbours in length train in the same step, on all ranks
            pool.sort()
        for step in torch.randperm(POOL, generator=generator).tolist():
            begin = (step * world + (rank + step) % world) * batch
            yield pool[begin : begin + batch]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=205)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument(
        "--bucket", action="store_true", help="give all ranks batches of one length in a step"
    )
    parser.add_argument("--run-dir")
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.manual_seed(0)

    width = options.width
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(8)]
    model = torch.nn.Sequential(torch.nn.Embedding(WORDS, width), *layers, torch.nn.Linear(width, WORDS))
    ddp = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-2)
    lengths = torch.empty(POOL * options.batch * world * 2).log_normal_(4.5, 0.7).clamp(8, 600).int().tolist()

    step, epoch = 0, 0
    with Probe(ddp, run_dir=options.run_dir) as probe:
        while step < options.steps:
            for own in batches(lengths, options.batch, rank, world, epoch, bucket=options.bucket):
                words = torch.randint(WORDS, (len(own), max(own) + 1))
                with probe.step():
                    probe.tokens(len(own) * max(own))  # padding is computed too
                    inputs, targets = words[:, :-1].to(device), words[:, 1:].to(device)
                    padding = (
                        torch.arange(max(own), device=device) >= torch.tensor(own, device=device)[:, None]
                    )
                    outputs = ddp(inputs)
                    loss = torch.nn.functional.cross_entropy(outputs[~padding], targets[~padding])
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                step += 1
                if step == options.steps:
                    break
            epoch += 1
    if rank == 0:
        print(f"{step} steps, loss {loss.item():.3f}; scaling analyze {probe.run_dir}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
