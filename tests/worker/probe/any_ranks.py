"""`any_ranks.py RANK STORE FOLDER`: loops of several kinds on two Gloo ranks; the second sleeps in one phase."""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank
from torch.distributed._composable.replicate import replicate
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe

STEPS, NAP_S = 46, 0.03
PHASE = {
    "reduced_before": "forward",
    "closure": "optimizer",
    "fetched_between": "input",
    "by_hand": "optimizer",
    "stepped_within": "backward",
    "sharded": "forward",
    "replicated": "forward",
    "two_models": "optimizer",
    "one_of_two": "optimizer",
    "broadcast_first": "optimizer",
}
"""Where rank 1 sleeps in each loop."""


class Net(torch.nn.Module):
    def __init__(self, nap):
        super().__init__()
        self.nap = nap
        self.inner = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

    def forward(self, x):
        self.nap("forward")
        return self.inner(x)


class Optimizer(torch.optim.SGD):
    nap = None

    def step(self, closure=None):
        result = super().step(closure)
        self.nap("optimizer")
        return result


def train(kind, nap, probed):
    """Losses of a loop; `probed(model)` -> what stands around each step."""
    torch.manual_seed(0)
    net = Net(nap)
    wrap = {
        "by_hand": lambda m: m,
        "stepped_within": lambda m: m,
        "sharded": FullyShardedDataParallel,
        "replicated": replicate,
    }
    model = wrap.get(kind, DistributedDataParallel)(
        net, **({"device_id": torch.device("cpu")} if kind == "sharded" else {})
    )
    other = DistributedDataParallel(torch.nn.Linear(64, 64)) if kind in ("two_models", "one_of_two") else None
    optimizer = Optimizer(model.parameters(), lr=0.01)
    optimizer.nap = nap
    beside = torch.optim.SGD(other.parameters(), lr=0.01) if other else None
    if kind == "stepped_within":
        each = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

        def update(parameter):
            dist.all_reduce(parameter.grad)
            each[parameter].step()
            each[parameter].zero_grad()
            nap("backward" if parameter is net.inner[-1].weight else "")

        for parameter in each:
            parameter.register_post_accumulate_grad_hook(update)
    generator, losses = torch.Generator().manual_seed(dist.get_rank()), []

    def fetch():
        nap("input")
        return torch.randn(8, 64, generator=generator)

    def closure(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    step, x = probed(model), torch.randn(8, 64, generator=generator)
    for _ in range(STEPS):
        with step():
            if kind == "broadcast_first":
                dist.broadcast(torch.zeros(1), src=0)
            if other is not None:
                other(x).square().mean().backward()
                beside.step()
                beside.zero_grad()
            if kind == "closure":
                losses.append(optimizer.step(functools.partial(closure, x)).item())
                x = fetch()
                continue
            loss = model(x).square().mean()
            if kind == "reduced_before":
                dist.all_reduce(loss.detach().clone())
            if kind == "fetched_between":
                x = fetch()
            loss.backward()
            if kind == "by_hand":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            if kind != "stepped_within":
                optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if kind != "fetched_between":
                x = fetch()
    return losses


def main(rank: int, folder: str) -> dict:
    folder, told = Path(folder), {}
    for kind, phase in PHASE.items():

        def nap(where, phase=phase):
            if rank == 1 and where == phase:
                time.sleep(NAP_S)

        probes = []

        def probed(model, kind=kind, probes=probes):
            probe = Probe(None if kind in ("two_models", "by_hand") else model, run_dir=folder / kind)
            probes.append(probe.open())
            return probe.step

        with_probe = train(kind, nap, probed)
        probes[0].close()
        without = train(kind, lambda _where: None, lambda _model: contextlib.nullcontext)
        told[kind] = with_probe == without
    return {"phases": PHASE, **told}


if __name__ == "__main__":
    as_rank(main)
