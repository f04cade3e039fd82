"""Whole state dicts of a sharded model and its optimizer, of two ranks, with a Probe and without.

`sharded_states.py RANK STORE RUN`: prints whether losses and states are equal.
"""

import contextlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

from scaling import Probe

rank, store, folder = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)


def trained(probed):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    whole, seen = StateDictOptions(full_state_dict=True), []
    with Probe(model, run_dir=folder) if probed else contextlib.nullcontext() as probe:
        for index in range(40):
            with probe.step() if probe else contextlib.nullcontext():
                torch.manual_seed(7 * index + rank)
                loss = model(torch.randn(4, 8)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            seen.append(loss.item())
            if index in (3, 20, 33):  # before, between and in blocks that are recorded
                seen.append(
                    {name: t.tolist() for name, t in get_model_state_dict(model, options=whole).items()}
                )
                seen.append(repr(get_optimizer_state_dict(model, optimizer, options=whole)))
                seen.append(repr(model.state_dict()))
    return seen


print(json.dumps(trained(False) == trained(True)), flush=True)
dist.barrier()
os._exit(0)  # see vanished.py
