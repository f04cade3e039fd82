"""`uneven_ranks.py RANK STORE FOLDER`: a training on two Gloo ranks whose steps take 20 us a token, told as JSON.

A busy machine stretches sleeps and keeps a rank waiting for a core, so the loop itself notes how long each step really
took outside of backward, where ranks wait for each other.
"""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path
from typing import Any

import torch
from support.gloo_ranks import as_rank
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

STEPS = {"told": 165, "untold": 45, "squared": 165}
"""Sixteen rounds, or four, behind the warm-up."""
SQUARE_S = {"squared": 6e-9}
"""What a squared token takes in the steps of one of them."""
TOKEN_S = 20e-6
LEAST, MOST = (300, 700), (2300, 2700)
"""Tokens of a step, by rank."""


class Reader(torch.nn.Module):
    """Takes so long a token."""

    def __init__(self, square_s: float) -> None:
        super().__init__()
        self.layer, self.square_s = torch.nn.Linear(64, 64), square_s

    def forward(self, inputs: torch.Tensor, tokens: int) -> torch.Tensor:
        time.sleep(tokens * TOKEN_S + tokens**2 * self.square_s)
        return self.layer(inputs)


def train(rank: int, folder: Path, steps: int, *, tell: bool, square_s: float) -> dict[str, Any]:
    ddp = DistributedDataParallel(Reader(square_s))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    most = 2 * MOST[rank] if square_s else MOST[rank]  # a wide range tells the two apart
    told = torch.randint(LEAST[rank], most, (steps,), generator=generator).tolist()
    took_s, said = [], io.StringIO()
    with contextlib.redirect_stderr(said), Probe(ddp, run_dir=folder) as probe:
        if not tell:
            probe.tokens(300)
        end = time.perf_counter()
        for tokens in told:
            begin = end
            with probe.step():
                if tell:  # as micro-batches would
                    probe.tokens(tokens // 3)
                    probe.tokens(tokens - tokens // 3, squared=tokens**2 if square_s else 0)
                loss = ddp(torch.ones(8, 64), tokens).square().mean()
                before = time.perf_counter()
                loss.backward()
                behind = time.perf_counter()
                optimizer.step()
                optimizer.zero_grad()
            end = time.perf_counter()
            took_s.append(end - begin - (behind - before))
    return {"tokens": told, "took_s": took_s, "said": said.getvalue().splitlines()[:-1]}


def main(rank: int, folder: str) -> dict[str, Any]:
    return {
        name: train(
            rank, Path(folder) / name, STEPS[name], tell=name != "untold", square_s=SQUARE_S.get(name, 0.0)
        )
        for name in STEPS
    }


if __name__ == "__main__":
    as_rank(main)
