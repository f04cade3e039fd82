"""`torchrun ... restarted.py FOLDER ATTEMPT`: a training that fails and resumes from its checkpoint, and its times.

Rank 0 adds a line for each attempt to FOLDER/attempts.jsonl: when it began, its steps in s, and its saves in s.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

STEPS, SAVED_EVERY, FAILS_AT = 160, 40, (70, 130)
STEP_S, SAVE_S = 0.03, 0.15


def main(folder: Path, attempt: int) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.Adam(model.parameters())
    kept, step = folder / "kept.pt", 0
    if kept.exists():
        state = torch.load(kept)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    fails = FAILS_AT[attempt] if attempt < len(FAILS_AT) else STEPS
    times, saves, began = [], [], time.time()
    with Probe(model, run_dir=folder / "run") as probe:
        while step < fails:
            begin = time.perf_counter()
            with probe.step():
                time.sleep(STEP_S)
                model(torch.ones(4, 8)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            times.append(time.perf_counter() - begin)
            if step % SAVED_EVERY == 0:
                begin = time.perf_counter()
                with probe.pause("checkpoint"):
                    if rank == 0:
                        state = {
                            "step": step,
                            "model": model.state_dict(),
                            "optimizer": optimizer.state_dict(),
                        }
                        torch.save(state, kept)
                        time.sleep(SAVE_S)
                    dist.barrier()
                saves.append(time.perf_counter() - begin)
    if rank == 0:
        line = {"began": began, "ended": time.time(), "steps": times, "saves": saves}
        with (folder / "attempts.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    if fails < STEPS:
        time.sleep(2.0 * rank)  # the first rank ends by itself before the others are ended
        raise SystemExit(f"fails at step {step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
