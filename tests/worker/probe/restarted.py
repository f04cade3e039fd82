"""`torchrun ... restarted.py FOLDER [STEP ...]`: a training that resumes from its checkpoint, and its steps' times.

Each attempt kills its ranks when it comes to its own STEP; one without a STEP ends by itself, unless others end it.
Rank 0 writes a line for each step to FOLDER/attempt-<k>.txt at once, so that a killed attempt leaves all of them:
the number of the step, when it ended, how long it took, and how long what came behind it took, s.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

STEPS, SAVED_EVERY = 3000, 100
STEP_S, SAVE_S = 0.008, 0.1


@dataclass(frozen=True)
class Attempt:
    """What one attempt noted: each step as (its number, its end, its duration, that of the save behind it)."""

    began: float
    steps: list[tuple[int, float, float, float]]


def attempts(folder: Path) -> list[Attempt]:
    """All that have begun, in order."""
    read = []
    for path in sorted(folder.glob("attempt-*.txt"), key=lambda path: int(path.stem.partition("-")[2])):
        began, *rows = path.read_text().splitlines()
        numbers = [[float(word) for word in row.split()] for row in rows]
        read.append(Attempt(float(began), [(int(n), end, step, save) for n, end, step, save in numbers]))
    return read


def main(folder: Path, killed_at: list[int]) -> None:
    import torch  # the test reads the constants and `attempts` alone
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from scaling import Probe

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    attempt: list[int | None] = [len(list(folder.glob("attempt-*.txt")))]
    dist.broadcast_object_list(attempt)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.Adam(model.parameters())
    kept, step = folder / "kept.pt", 0
    if kept.exists():
        state = torch.load(kept)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    last = (*killed_at, *[STEPS] * (attempt[0] + 1))[attempt[0]]
    with (
        (folder / f"attempt-{attempt[0]}.txt" if rank == 0 else Path(os.devnull)).open(
            "w", buffering=1
        ) as log,
        Probe(model, run_dir=folder / "run") as probe,
    ):
        print(time.time(), file=log)
        while step < STEPS:
            begin = time.perf_counter()
            with probe.step():
                time.sleep(STEP_S)
                model(torch.ones(4, 8)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            took, saved = time.perf_counter() - begin, 0.0
            if step % SAVED_EVERY == 0:
                begin = time.perf_counter()
                with probe.pause("checkpoint"):
                    if rank == 0:
                        whole = {
                            "step": step,
                            "model": model.state_dict(),
                            "optimizer": optimizer.state_dict(),
                        }
                        torch.save(whole, kept.with_suffix(".part"))
                        kept.with_suffix(".part").replace(kept)
                        time.sleep(SAVE_S)
                    dist.barrier()
                saved = time.perf_counter() - begin
            print(step, time.time(), took, saved, file=log)
            if step == last < STEPS:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]])
