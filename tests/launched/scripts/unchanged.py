"""A user's script without a line of ours: two models, an evaluation, a rank that is late in its input."""

import sys
import time

import torch
import torch.distributed as dist
from beside import LATE_S  # a module in the script's own folder
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4)))
small = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (ddp, small))
for index in range(int(sys.argv[1])):
    small(torch.ones(4, 4)).square().mean().backward()
    other.step()
    other.zero_grad()
    time.sleep(LATE_S if dist.get_rank() == 1 else 0.002)
    ddp(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if index % 30 == 20:
        ddp.eval()
        with torch.no_grad():
            ddp(torch.randn(16, 64))
        ddp.train()
dist.destroy_process_group()
