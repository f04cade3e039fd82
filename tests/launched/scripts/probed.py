"""A user's script with the probe's two lines."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--fails-at", type=int, default=0)
options = parser.parse_args()
dist.init_process_group("gloo")
if dist.get_world_size() == options.fails_at and dist.get_rank() == 1:
    raise ValueError("no such data set: imagenet")
torch.manual_seed(0)
ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4)))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
with Probe(ddp, name="two layers") as probe:
    for _ in range(options.steps):
        with probe.step():
            time.sleep(0.002)
            ddp(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
