"""`claim_ranks.py RANK STORE FOLDER`: loops on two Gloo ranks that reduce their gradients by hand; rank 1 may sleep."""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank

from scaling import Probe

STEPS, NAP_S = 75, 0.02
LOOPS = {"waits": False, "late": True, "polls": False, "polls_late": True, "apart": True}
"""Whether rank 1 sleeps in forward."""


def await_all(kind, works):
    if kind.startswith("polls"):
        while not all(work.is_completed() for work in works):
            pass
    else:
        for work in works:
            work.wait()


def train(kind, late, folder):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    generator = torch.Generator().manual_seed(dist.get_rank())
    with Probe(model, run_dir=folder / kind) as probe:
        for _ in range(STEPS):
            with probe.step():
                loss = model(torch.randn(8, 64, generator=generator)).square().mean()
                if late and dist.get_rank() == 1:
                    time.sleep(NAP_S)
                loss.backward()
                if kind != "apart":
                    await_all(kind, [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()])
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    return losses


def main(_rank, folder):
    return {kind: train(kind, late, Path(folder)) for kind, late in LOOPS.items()}


if __name__ == "__main__":
    as_rank(main)
