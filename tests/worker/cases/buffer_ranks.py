"""`buffer_ranks.py RANK STORE`: one of two Gloo ranks that train cases of a model with buffers.

Rank 1 runs out of memory in the forward of some, or while it makes their batch; prints
what each common step after that took, ns, as one JSON line.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank

from scaling.config.compose import requests
from scaling.settings.cases import Case, Variant
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.cases.programs import Training
from scaling.worker.data.workload import Workload, sgd
from scaling.worker.parallel.groups import make_groups

TIMEOUT = timedelta(seconds=20)
FEW, TOO_MANY, NO_BATCH = 4, 16, 32
"""Samples; rank 1 has no memory for a forward of TOO_MANY, nor for a batch of NO_BATCH."""
LOCAL = ("model=mlp", "topology=local", "topology.device=cpu", "topology.ranks_per_host=2", "world_sizes=[2]")


class Normalised(torch.nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.rank = rank

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.rank == 1 and len(inputs) >= TOO_MANY:
            raise MemoryError
        return self.layers(inputs)


def alone(runner: Training, case: Case, rank: int, words: dist.Store, word: str) -> bool:
    """Whether it fits. Rank 0 begins when rank 1 is through: it cannot have waited for rank 0."""
    if rank == 0:
        words.wait([word], TIMEOUT)
    try:
        runner.use(case)
        runner.alone()
        fits = True
    except MemoryError:
        fits = False
    words.set(word, "through")
    runner.drop()
    return fits


def main(rank: int) -> dict[str, list]:
    groups = make_groups({2: [(0, 1)]}, rank=rank, world=2, backend="gloo", timeout=TIMEOUT)
    words = dist.FileStore(f"{sys.argv[2]}-words", 2)

    def make_batch(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        if rank == 1 and n >= NO_BATCH:
            raise MemoryError
        return torch.randn(n, 4, generator=generator), torch.zeros(n, 4)

    workload = Workload(
        module=Normalised(rank), make_batch=make_batch, loss=torch.nn.functional.mse_loss, optimizer=sgd
    )
    (request,) = requests("plan", [*LOCAL, "batch=[8]"]).items
    runner = Training(request.spec, workload, groups, Cpu(), rank=rank)
    runner.bare(2)
    runner.open(2)
    fits, took_ns = [], []
    for accumulation in (1, 2):
        variant = Variant(precision="fp32", autocast=False, accumulation_steps=accumulation)
        for number, samples in enumerate((TOO_MANY, FEW, NO_BATCH, FEW)):
            case = Case(variant=variant, batch=samples * accumulation)
            begin = now_ns()
            runner.settle(case)
            fits.append(alone(runner, case, rank, words, f"{accumulation}/{number}"))
            if samples == FEW:
                runner.use(case)
                runner.together()
                took_ns.append(now_ns() - begin)
                runner.drop()
    runner.close()
    return {"fits": fits, "took_ns": took_ns}


if __name__ == "__main__":
    as_rank(main, timeout_s=20)
