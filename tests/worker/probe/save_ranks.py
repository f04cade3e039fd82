"""`save_ranks.py RANK STORE FOLDER`: trainings on two Gloo ranks that save asynchronously to a slow disk, told as JSON.

The disk of one training only takes long; that of the other keeps the interpreter busy meanwhile, as compression does.
The loops note themselves how long each save blocked, and each step beside a save and apart from one.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support.gloo_ranks import as_rank
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

STEPS, EVERY, DISK_S, STEP_S = 605, 60, 0.15, 0.004


class Disk(dcp.FileSystemWriter):
    """Takes DISK_S longer."""

    busy = False

    def write_data(self, plan: Any, planner: Any) -> Any:
        until = time.perf_counter() + DISK_S
        while self.busy and time.perf_counter() < until:
            pass
        time.sleep(max(0.0, until - time.perf_counter()))
        return super().write_data(plan, planner)


def train(folder: Path, kept: str, *, busy: bool) -> dict[str, list[float]]:
    ddp = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    group = dist.new_group(backend="gloo")
    blocked, beside, apart = [], [], []
    future = None
    with Probe(ddp, run_dir=folder) as probe:
        for index in range(STEPS):
            begin, running = time.perf_counter(), future is not None and not future.done()
            with probe.step():
                time.sleep(STEP_S)
                ddp(torch.ones(8, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            (beside if running else apart).append(time.perf_counter() - begin)
            if index % EVERY == EVERY - 1:
                disk = Disk(Path(kept) / str(index))
                disk.busy = busy
                if future is not None:  # two at once would mix their messages
                    future.result()
                begin = time.perf_counter()
                future = dcp.async_save({"model": ddp.state_dict()}, storage_writer=disk, process_group=group)
                blocked.append(time.perf_counter() - begin)
        future.result()
    return {"blocked": blocked, "beside": beside, "apart": apart}


def main(rank: int, folder: str) -> dict[str, dict[str, list[float]]]:
    told = {}
    for name, busy in (("slow", False), ("busy", True)):
        kept = [tempfile.mkdtemp()] if rank == 0 else [None]
        dist.broadcast_object_list(kept)
        told[name] = train(Path(folder) / name, kept[0], busy=busy)
    return told


if __name__ == "__main__":
    as_rank(main, timeout_s=120)
