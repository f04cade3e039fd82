"""`phase_ranks.py RANK STORE FOLDER`: loops on two Gloo ranks whose steps have named phases; the second rank's rollout
takes NAP_S longer. Each rank tells what its probe said, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

STEPS, NAP_S, SHORT_S = 105, 0.03, 0.005
LOOPS = ("apart", "met", "even", "misused")
"""Ranks meet in backward, or in the rollout itself; none is late; names that cannot be."""


def misuse(probe: Probe) -> None:
    with probe.phase(7):  # no text
        pass
    with probe.phase("rollout"), probe.phase("inner"):
        pass
    with contextlib.suppress(KeyError), probe.phase("raises"):
        raise KeyError


def train(kind: str, rank: int, folder: Path) -> list[str]:
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), Probe(model, run_dir=folder) as probe:
        with probe.phase("outside"):
            pass
        reward = probe.phase("reward")  # and used in every step
        for _ in range(STEPS):
            with probe.step():
                with probe.phase("rollout"), torch.no_grad():
                    inputs = model(torch.ones(8, 64))
                    time.sleep(SHORT_S + NAP_S * (rank == 1 and kind in ("apart", "met")))
                    if kind == "met":
                        dist.barrier()
                with reward:
                    time.sleep(SHORT_S)
                if kind == "misused":
                    misuse(probe)
                with probe.phase("update"):
                    model(inputs).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
    return said.getvalue().splitlines()[:-1]


def main(rank: int, store: str, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    said = {kind: train(kind, rank, folder / kind) for kind in LOOPS}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(said))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
