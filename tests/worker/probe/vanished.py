"""Rank 0's working directory is removed before its Probe opens: `vanished.py RANK STORE FOLDER`, on two ranks."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
if rank == 0:
    Path(folder).mkdir()
    os.chdir(folder)
    Path(folder).rmdir()
begin = time.monotonic()
with Probe(model) as probe:
    sys.stdout.write(json.dumps([time.monotonic() - begin, probe.run_dir]) + "\n")
