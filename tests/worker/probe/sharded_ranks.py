"""`sharded_ranks.py RANK STORE FOLDER`: sharded trainings on four Gloo ranks, some with a probe, told as JSON."""

from __future__ import annotations

import contextlib
import io
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from scaling import Probe

RANKS, STEPS, MICRO_STEPS, WIDTH, BLOCKS = 4, 36, 2, 256, 3
LATE_S = 0.03


class Block(torch.nn.Module):
    """What is sharded as a unit."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.relu(self.inner(x))


def sharded(mesh, **how):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(BLOCKS)), torch.nn.Linear(WIDTH, 4))
    for block in list(model)[:-1]:
        fully_shard(block, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh)


def accumulating(model, last, *, replicated):
    if replicated:
        model.set_requires_all_reduce(last)
    else:
        model.set_requires_gradient_sync(last)


def train(model, make=None, *, micro_steps=1, each=False, late=False, clip=False):
    """Losses and weights. `each`: step() is put around each micro-step; `late`: rank 1 sleeps in its forward."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    mesh = next(model.parameters()).device_mesh
    losses, probe = [], make(model) if make else None
    inside = probe.step if probe else contextlib.nullcontext
    with probe or contextlib.nullcontext():
        for _ in range(STEPS):
            with contextlib.nullcontext() if each else inside():
                for micro in range(micro_steps):
                    with inside() if each else contextlib.nullcontext():
                        last = micro == micro_steps - 1
                        accumulating(model, last, replicated=mesh.ndim == 2)
                        if late and dist.get_rank() == 1:
                            time.sleep(LATE_S)
                        loss = model(torch.randn(8, WIDTH, generator=generator)).square().mean()
                        loss.backward()
                        losses.append(loss.item())
                        if last:
                            if clip:
                                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                            optimizer.step()
                            optimizer.zero_grad()
    weights = [p.to_local().tolist() for p in model.parameters()]
    return {"losses": losses, "weights": weights, "left": left(model)}


def left(model):
    """What a probe could have left: replaced methods, calls and hooks."""
    states = [m._get_fsdp_state() for m in model.modules() if hasattr(m, "_get_fsdp_state")]
    groups = [g for s in states for g in s._fsdp_param_groups]
    return [
        sum("unshard" in vars(g) for g in groups),
        sorted({type(g._all_gather_comm).__name__ for g in groups}),
        sorted({type(g._reduce_scatter_comm).__name__ for g in groups}),
        len(model._forward_pre_hooks),
        len(model._forward_hooks),
        "BackendSelect" in torch._C._dispatch_dump("c10d::allreduce_"),
    ]


def said(work):
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        work()
    return [line for line in text.getvalue().splitlines() if line.startswith("scaling:")]


def main(rank: int, folder: str) -> dict:
    os.environ["RANK"], folder = str(rank), Path(folder)
    flat = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",))
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    def probe(name):
        return lambda model: Probe(model, run_dir=folder / name)

    found = {
        "fsdp": train(sharded(flat)),
        "fsdp probed": train(sharded(flat), probe("fsdp")),
        "hsdp": train(sharded(both), micro_steps=MICRO_STEPS),
        "hsdp probed": train(sharded(both), probe("hsdp"), micro_steps=MICRO_STEPS),
    }
    train(sharded(flat), probe("each"), micro_steps=MICRO_STEPS, each=True)
    train(sharded(both), probe("each_hsdp"), micro_steps=MICRO_STEPS, each=True)
    train(sharded(flat), probe("late"), late=True)
    train(sharded(flat, reshard_after_forward=False), probe("kept"), clip=True)
    small = sharded(flat)
    if hasattr(small, "set_separate_reduce_scatter_group"):  # torch 2.11 cannot
        small.set_separate_reduce_scatter_group(True)
    train(small, probe("separate"))

    def baseline():
        model = sharded(flat)
        with Probe(model, run_dir=folder / "baseline") as one:
            one.baseline(lambda module: module)

    def divided():
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with Probe(model, run_dir=folder / "divided") as one:
            for _ in range(26):
                with one.step():
                    model(torch.ones(2, WIDTH)).square().mean().backward()
                    optimizer.step()

    found["said"] = {"baseline": said(baseline), "divided": said(divided)}
    return found


if __name__ == "__main__":
    as_rank(main, world_size=RANKS)
