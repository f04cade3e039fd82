"""A program for torchrun: its process groups are made, used under a Probe, destroyed and made again, twice.

    torchrun --nproc-per-node=3 remade.py FOLDER

In turn over ranks 0 and 1, over 1 and 2, and over all three. Each rank prints the folder of each of its probes.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

for turn, members in enumerate([[0, 1], [1, 2], [0, 1, 2]]):
    dist.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[1]}/store-{turn}",  # Gloo itself cannot use a store's names twice
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    group = dist.new_group(members)
    if dist.get_rank() in members:
        model = DistributedDataParallel(torch.nn.Linear(8, 8), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Probe(model, run_dir=f"{sys.argv[1]}/{turn}") as probe:
            for _ in range(60):
                with probe.step():
                    optimizer.zero_grad()
                    model(torch.randn(4, 8)).sum().backward()
                    optimizer.step()
        sys.stdout.write(f"{turn} {dist.get_rank()} {probe.run_dir}\n")
    dist.barrier()
    time.sleep(0.5)  # a rank that leaves at once may reset a connection in which another still waits
    dist.destroy_process_group()
