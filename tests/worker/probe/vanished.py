"""Rank 0's working directory is removed before its Probe opens; or only one rank opens a Probe, in a group of 8 s.

`vanished.py RANK STORE FOLDER [THE RANK WITH A PROBE]`, on two ranks.
"""

import contextlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

rank, store, folder, *alone = int(sys.argv[1]), *sys.argv[2:]
limit = {"timeout": timedelta(seconds=8)} if alone else {}
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, **limit)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
if rank == 0:
    Path(folder).mkdir()
    os.chdir(folder)
    if not alone:
        Path(folder).rmdir()
begin = time.monotonic()
with contextlib.nullcontext() if alone and int(alone[0]) != rank else Probe(model) as probe:
    model(torch.ones(2, 8)).sum().backward()
    sys.stdout.write(json.dumps([time.monotonic() - begin, probe and probe.run_dir]) + "\n")
sys.stdout.flush()
# Without any Probe, torch 2.13 aborted 5 of 14 such exits: a thread of Gloo drops the last collective's Python objects
# when the interpreter has begun to end.
os._exit(0)
