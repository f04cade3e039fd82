"""A real hang on Gloo: ranks that reduce in a loop, until one leaves the way. Each dumps its flight recorder.

`python hanging.py FOLDER WORLD FAULT RANK STEP` runs it; FAULT is skip, late, size or order. The dumps are
FOLDER/nccl_trace_rank_N (the pickle that a time-out writes) and FOLDER/json/rank_N.json.
"""

import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

STEPS, WAIT_S = 6, 1.0
"""A rank dumps WAIT_S after it began the step of the hang. The odd rank deviates once the others have dumped, since
Gloo ends a process whose peer sends another size."""


def wait_for(dumps, at_most_s=60):
    end = time.monotonic() + at_most_s
    while time.monotonic() < end and not all(path.exists() for path in dumps):
        time.sleep(0.05)


class Rank:
    def __init__(self, folder, rank):
        self.folder, self.rank, self.waits = folder, rank, threading.Event()
        threading.Thread(target=self.dump_soon, daemon=True).start()

    def dump_soon(self):
        self.waits.wait()
        time.sleep(WAIT_S)
        self.dump()

    def dump(self):
        (self.folder / f"nccl_trace_rank_{self.rank}").write_bytes(c10d._dump_fr_trace())
        (self.folder / "json" / f"rank_{self.rank}.json").write_bytes(c10d._dump_fr_trace_json())
        (self.folder / "done" / f"{self.rank}").touch()

    def step(self, deviates=None):
        dist.broadcast(torch.zeros(4), 0)
        if deviates == "late":
            self.waits.set()
            time.sleep(3600)
        elif deviates:
            wait_for([self.folder / "done" / f"{r}" for r in range(dist.get_world_size()) if r != self.rank])
            shape = {"skip": 2000, "size": 1001, "order": 1000}[deviates]
            work = dist.broadcast if deviates == "order" else dist.all_reduce
            work(torch.ones(shape), *([0] if deviates == "order" else []), async_op=True)
            self.dump()
            time.sleep(3600)
        for many in (1000, 2000, 500):
            dist.all_reduce(torch.ones(many))


def rank_of(folder, world, fault, odd, at, rank):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    mine = Rank(folder, rank)
    dist.barrier()
    for k in range(STEPS):
        if k == at and rank != odd:
            mine.waits.set()
        mine.step(fault if (rank, k) == (odd, at) else None)
    mine.waits.set()
    time.sleep(3600)


def main(folder, world, fault, odd, at):
    torch.set_num_threads(1)
    folder = Path(folder)
    for inside in ("json", "done"):
        (folder / inside).mkdir(parents=True)
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank_of, args=(folder, world, fault, odd, at, r)) for r in range(world)]
    for process in ranks:
        process.start()
    wait_for([folder / "done" / f"{rank}" for rank in range(world)])
    for process in ranks:
        process.kill()
        process.join()


if __name__ == "__main__":
    cases = sys.argv[1:]
    while cases:
        folder, world, fault, odd, at, *cases = cases
        main(folder, int(world), fault, int(odd), int(at))
