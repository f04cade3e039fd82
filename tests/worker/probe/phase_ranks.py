"""`phase_ranks.py RANK STORE FOLDER`: loops on two Gloo ranks whose steps have named phases; the second rank's rollout
takes NAP_S longer. Each rank tells what its probe said, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank
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


def main(rank: int, folder: str) -> dict[str, list[str]]:
    return {kind: train(kind, rank, Path(folder) / kind) for kind in LOOPS}


if __name__ == "__main__":
    as_rank(main)
