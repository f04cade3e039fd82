"""`strategy_ranks.py RANK STORE WORLD`: one of two or four Gloo ranks; trains with each strategy and by hand."""

from __future__ import annotations

import copy
import dataclasses
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from support.gloo_ranks import as_rank
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from scaling.config.compose import requests
from scaling.settings.run import KINDS
from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.data.workload import Workload
from scaling.worker.measure.arms import strategy_of
from scaling.worker.models.options import checkpoint_activations
from scaling.worker.parallel.groups import make_groups

WORLD, STEPS, MICRO, SAMPLES = int(sys.argv[3]), 3, 2, 8
OF_TWO = ("ddp", "fsdp", "fsdp compiled")
"""Cases of two ranks: HSDP over two is one of these."""
APART = str(hasattr(FSDPModule, "set_separate_reduce_scatter_group")).lower()
"""Torch 2.11 cannot."""
CASES = {
    "ddp": ["parallel=ddp"],
    "fsdp": ["parallel=fsdp"],
    "hsdp": ["parallel=hsdp", "parallel.shard=2"],
    "fsdp keeps": ["parallel=fsdp", "fsdp.reshard_after_forward=false"],
    "fsdp of two": ["parallel=fsdp", "fsdp.reshard_after_forward=2"],
    "fsdp ahead": ["parallel=fsdp", "fsdp.prefetch=2", f"fsdp.separate_reduce_scatter_group={APART}"],
    "fsdp by itself": ["parallel=fsdp", "fsdp.prefetch=0"],
    "fsdp in one": ["parallel=fsdp", "fsdp.units=Tail"],
    "fsdp again": ["parallel=fsdp", "checkpointing=true"],
    "hsdp again": ["parallel=hsdp", "parallel.shard=2", "checkpointing=true"],
    "fsdp compiled": ["parallel=fsdp", "compile=true"],
    "bf16": ["parallel=fsdp", "fsdp.reduce_dtype=bf16"],
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(24, 24), nn.LayerNorm(24)

    def forward(self, rows):
        return rows + torch.tanh(self.norm(self.inner(rows)))


class Tail(nn.Linear):
    pass


class Model(nn.Module):
    """An uneven first layer, which no rank shares evenly, repeated blocks, and a tail that is in none of them."""

    def __init__(self):
        super().__init__()
        self.first, self.blocks = nn.Linear(6, 24), nn.ModuleList(Block() for _ in range(3))
        self.tail = Tail(24, 3)

    def forward(self, rows):
        rows = self.first(rows)
        for block in self.blocks:
            rows = block(rows)
        return self.tail(rows)


def workload():
    torch.manual_seed(0)
    return Workload(
        module=Model(),
        make_batch=lambda n, generator: (torch.randn(n, 6, generator=generator), None),
        loss=lambda outputs, _targets: outputs.square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    )


def batches(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    return [[torch.randn(SAMPLES, 6, generator=generator) for _ in range(MICRO)] for _ in range(STEPS)]


def by_hand():
    """Losses of every rank and step, gradients and weights, of the whole batch on one rank."""
    module = workload().module
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    every, losses, gradients = [batches(rank) for rank in range(WORLD)], [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        row = []
        for rank in range(WORLD):
            found = [module(rows).square().mean() for rows in every[rank][step]]
            (sum(found) / WORLD).backward()
            row.append([loss.item() for loss in found])
        gradients = [p.grad.clone() for p in module.parameters()]
        optimizer.step()
        losses.append(row)
    return losses, gradients, [p.detach().clone() for p in module.parameters()]


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def trained(made, rank, work):
    losses, gradients = [], []
    for step in batches(rank):
        made.optimizer.zero_grad()
        row = []
        for micro, rows in enumerate(step):
            with made.accumulate(micro == MICRO - 1):
                loss = work.loss(made.module(rows), None)
                loss.backward()
            row.append(loss.item())
        gradients = [whole(p.grad).clone() for p in made.module.parameters()]
        made.optimizer.step()
        losses.append(row)
    return losses, gradients, [whole(p.detach()).clone() for p in made.module.parameters()]


def largest(ours, theirs):
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def compare(overrides, rank, groups, truth):
    asked = [
        "model=mlp",
        "topology=local",
        f"topology.ranks_per_host={WORLD}",
        "topology.device=cpu",
        *overrides,
    ]
    (request,) = requests("run", [*asked, f"world_sizes=[{WORLD}]", "accumulation_steps=2"]).items
    work = workload()
    if request.spec.checkpointing:
        checkpoint_activations(work)
    optimizer = work.optimizer(work.module.parameters())
    device = Cpu()

    strategy = strategy_of(
        request.spec, copy.copy(work), optimizer, groups=groups, world_size=WORLD, device=device
    )

    def make(**asked):
        return strategy.apply("plain", **asked)

    made = make(alone=False)
    losses, gradients, weights = trained(made, rank, work)
    held = made.bytes()
    if request.spec.parallel.sharded:  # the whole model's optimizer has states once it took a step
        work.loss(work.module(batches(rank)[0][0]), None).backward()
        optimizer.step()
        optimizer.zero_grad()
    theirs = [[step[rank] for step in truth[0]], truth[1], truth[2]]
    found = {
        "loss": max(
            abs(a - b) for x, y in zip(losses, theirs[0], strict=True) for a, b in zip(x, y, strict=True)
        ),
        "gradients": largest(gradients, theirs[1]),
        "weights": largest(weights, theirs[2]),
        "holds": held,
        "computed": strategy.computed(optimizer),
        "graphs": counters["stats"]["unique_graphs"],
    }
    if request.spec.parallel.sharded:
        work.module.load_state_dict(workload().module.state_dict())
        before = len(dist.distributed_c10d._world.pg_map)
        made = make(alone=False)
        found["new groups"] = len(dist.distributed_c10d._world.pg_map) - before
        detail = made.detail(detailed=True)
        made.accumulate(True).__enter__()
        work.loss(made.module(batches(rank)[0][0]), None).backward()
        with detail.taking() as take:
            begin = now_ns()
            work.loss(made.module(batches(rank)[0][0]), None).backward()
            rows, waits = take(0)
            end = now_ns()
        made_by_torch = request.spec.parallel.mesh(WORLD).made_by_torch(rank, request.spec.fsdp)
        ranks = {key: group.ranks for key, group in groups.items()} | made_by_torch
        found["rows"] = [
            [KINDS[r.kind], ("backward", "forward")[r.phase], r.unit, r.bytes, list(ranks[r.group])]
            for r in rows
        ]
        found["stamps"] = all(begin <= r.launch_ns < r.done_ns <= end for r in rows)
        found["waited"] = all(r.launch_ns <= r.resume_ns and 0 < r.wait_ns <= r.resume_ns for r in rows)
        found["waits"] = [sum(w.end - w.begin for w in waits if w.phase == p) / (end - begin) for p in (0, 1)]
        found["unsharded"] = detail.unsharded_bytes
        found["graphs of two"] = counters["stats"]["unique_graphs"]
        units = [name or "root" for name, part in made.module.named_modules() if isinstance(part, FSDPModule)]
        found["units"], found["whole"] = units, made.buckets
        found["left"] = sorted(k for u in made.module.modules() for k in vars(u) if k == "post_backward")
        found["held"] = made.bytes()
    return found


def in_fp16(rank, groups):
    """Four steps with a loss scaler; rank 1 alone overflows in the second. Scales, and whether weights moved."""
    (request,) = requests(
        "run",
        [
            "model=mlp",
            "topology=local",
            f"topology.ranks_per_host={WORLD}",
            "parallel=hsdp",
            "parallel.shard=2",
        ],
    ).items
    spec = dataclasses.replace(request.spec, precision="fp16")  # which `scaling run` refuses on a CPU
    work = workload()
    strategy = strategy_of(
        spec, work, work.optimizer(work.module.parameters()), groups=groups, world_size=WORLD, device=Cpu()
    )
    made, precision = strategy.apply("plain", alone=False), Precision("fp16", "cpu")
    scaler, found = (
        torch.amp.GradScaler("cpu", init_scale=256.0),
        [],
    )  # which no gradient of the model overflows
    before = [whole(p.detach()).clone() for p in made.module.parameters()]
    for step in range(4):
        with made.accumulate(True), precision.autocast():
            loss = work.loss(made.module(batches(rank)[0][0]), None)
        scale = scaler.scale(loss)
        (scale * float("inf") if (step, rank) == (1, 1) else scale).backward()
        scaler.step(made.optimizer)
        scaler.update()
        made.optimizer.zero_grad()
        after = [whole(p.detach()).clone() for p in made.module.parameters()]
        found.append([scaler.get_scale(), largest(after, before) > 0, loss.item()])
        before = after
    return found


def main(rank: int, _world: str) -> dict:
    names = [name for name in CASES if name != "fsdp compiled"] if WORLD > 2 else list(OF_TWO)
    of_axes = CASES["hsdp" if "hsdp" in names else "fsdp"]
    (request,) = requests("run", ["topology=local", f"topology.ranks_per_host={WORLD}", *of_axes]).items
    mesh = request.spec.parallel.mesh(WORLD)
    parts = {WORLD: [tuple(range(WORLD))]} | {mesh.keys()[axis]: of for axis, of in mesh.axes().items()}
    groups = make_groups(parts, rank=rank, world=WORLD, backend="gloo", timeout=timedelta(seconds=60))
    truth = by_hand()
    found = {name: compare(CASES[name], rank, groups, truth) for name in names}
    if "hsdp" in names:
        found["fp16"] = in_fp16(rank, groups)
    return found


if __name__ == "__main__":
    as_rank(main, world_size=WORLD)
