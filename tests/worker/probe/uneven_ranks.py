"""`uneven_ranks.py RANK URL FOLDER`: trainings on two Gloo ranks that tell a Probe their tokens, or do not. As JSON."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import torch
from support.gloo_ranks import answer, join
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

STEPS = 45
"""Four rounds behind the warm-up."""
LEAST, MOST = (300, 700), (2300, 2700)
"""Tokens of a step, by rank."""


def train(rank: int, folder: Path, *, tell: bool) -> dict[str, Any]:
    ddp = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    told = torch.randint(LEAST[rank], MOST[rank], (STEPS,), generator=generator).tolist()
    said = io.StringIO()
    with contextlib.redirect_stderr(said), Probe(ddp, run_dir=folder) as probe:
        if not tell:
            probe.tokens(300)
        for tokens in told:
            with probe.step():
                if tell:  # as micro-batches would
                    probe.tokens(tokens // 3)
                    probe.tokens(tokens - tokens // 3)
                ddp(torch.ones(8, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return {"tokens": told, "said": said.getvalue().splitlines()[:-1]}


def main() -> None:
    rank, folder = join(2), Path(sys.argv[3])
    answer({name: train(rank, folder / name, tell=name == "told") for name in ("told", "untold")})


if __name__ == "__main__":
    main()
