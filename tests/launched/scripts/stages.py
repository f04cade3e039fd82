"""A user's pipeline without a line of ours: stage 1 computes nothing before stage 0 has sent, and its batch is late."""

import time

import torch
import torch.distributed as dist
from beside import LATE_S  # a module in the script's own folder

WIDTH, STEPS = 64, 80

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, last = dist.get_rank(), dist.get_world_size() - 1
stage = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
for _ in range(STEPS):
    inputs = torch.randn(16, WIDTH)
    if rank == 1:
        time.sleep(LATE_S)
    if rank > 0:
        dist.recv(inputs, src=rank - 1)
        inputs.requires_grad_()
    outputs = stage(inputs)
    if rank < last:
        dist.send(outputs.detach(), dst=rank + 1)
        gradient = torch.empty_like(outputs)
        dist.recv(gradient, src=rank + 1)
        outputs.backward(gradient)
    else:
        outputs.square().mean().backward()
    if rank > 0:
        dist.send(inputs.grad, dst=rank - 1)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
