"""A user's training with a Probe on simulated accelerators: rank 1 is late in its forward, on its stream."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe
from scaling_simulator import load
from scaling_simulator.device import configure, line, set_cost, set_link, sleep_us

LATE_US = float(sys.argv[1])


class Late(torch.nn.Module):
    def forward(self, x):
        if dist.get_rank() == 1:
            sleep_us(LATE_US)
        return x


load()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
configure(devices=world, launch_us=1)
set_link(line(latency_us=20, gb_s=1))
set_cost(3000, "aten::addmm", "aten::mm")
torch.accelerator.set_device_index(rank)
dist.init_process_group("simccl")
torch.manual_seed(0)
layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)], Late()).to(f"sim:{rank}")
ddp = DistributedDataParallel(layers, bucket_cap_mb=0.6)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
with Probe(ddp, name="four layers") as probe:
    for _ in range(80):
        with probe.step():
            ddp(torch.randn(32, 256, device=f"sim:{rank}")).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
