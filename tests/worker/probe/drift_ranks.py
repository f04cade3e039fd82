"""`drift_ranks.py RANK STORE FOLDER`: loops on two Gloo ranks; from step SINCE on, the second one takes NAP_S more."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from support.gloo_ranks import as_rank
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

STEPS, SINCE, NAP_S, SHORT_S = 505, 255, 0.015, 0.01
LOOPS = ("slows", "even")


def train(kind: str, rank: int, folder: Path) -> None:
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Probe(model, run_dir=folder) as probe:
        for step in range(STEPS):
            with probe.step():
                time.sleep(SHORT_S)
                loss = model(torch.ones(8, 64)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                with probe.phase("rollout"):
                    time.sleep(NAP_S * (kind == "slows" and rank == 1 and step >= SINCE))


def main(rank: int, folder: str) -> None:
    for kind in LOOPS:
        train(kind, rank, Path(folder) / kind)


if __name__ == "__main__":
    as_rank(main)
