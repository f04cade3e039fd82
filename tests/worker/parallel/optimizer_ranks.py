"""`optimizer_ranks.py RANK STORE WORLD`: one of four Gloo ranks; trains with every optimizer, strategy and form of it.

Optimizers loop over their tensors on a CPU and have one call for many of them (`foreach`) on accelerators, by
default. What a strategy gives them is then the same: so both forms, and the fused one, run here.
"""

from __future__ import annotations

import functools
import sys
from datetime import timedelta

import torch
from support.gloo_ranks import as_rank
from torch import nn

from scaling.config.compose import requests
from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.data.workload import Workload, sgd
from scaling.worker.measure.arms import strategy_of
from scaling.worker.models.extra import adamw, momentum
from scaling.worker.models.options import shaped
from scaling.worker.parallel.groups import make_groups

WORLD, STEPS, SAMPLES = int(sys.argv[3]), 3, 4
STRATEGIES = {
    "single": ["world_sizes=[1]", "parallel=single"],
    "ddp": ["parallel=ddp"],
    "fsdp": ["parallel=fsdp"],
    "hsdp": ["parallel=hsdp", "parallel.shard=2"],
    "tp": ["parallel=tp"],
    "fsdp_tp": ["parallel=fsdp_tp"],
    "hsdp_tp": ["parallel=hsdp_tp", "parallel.shard=1"],
}
OPTIMIZERS = {"sgd": sgd, "momentum": momentum, "adamw": adamw}
HERE = ("topology=local", f"topology.ranks_per_host={WORLD}", "topology.device=cpu")
FORMS = ("loop", "foreach", "fused")


class Model(nn.Module):
    """Layers that are divided, and some that are not: a norm, and a first layer of odd width."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(5, 8), nn.LayerNorm(8)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, rows):
        rows = self.norm(self.first(rows))
        return rows + self.layers(rows)


def in_form(make, form, parameters):
    """An optimizer as accelerators run it by default (`foreach`), or as CPUs do; with a rate that moves the loss."""
    made = make(parameters)
    for group in made.param_groups:
        group |= {"foreach": form == "foreach", "lr": 0.05}
    return made


def workload(make, form):
    torch.manual_seed(0)
    return Workload(
        module=Model(),
        make_batch=lambda n, generator: (torch.randn(n, 5, generator=generator), None),
        loss=lambda outputs, _targets: outputs.square().mean(),
        optimizer=functools.partial(in_form, make, form),
    )


@functools.cache
def spec_of(strategy, fused):
    asked = (*HERE, f"world_sizes=[{WORLD}]", *STRATEGIES[strategy], f"fused_optimizer={str(fused).lower()}")
    (request,) = requests("run", ["model=mlp", *asked]).items
    return request.spec


def made_of(strategy, make, form, groups):
    """The model as a strategy trains it, and its workload."""
    spec, device = spec_of(strategy, form == "fused"), Cpu()
    work = shaped(workload(make, form), spec)
    optimizer = work.optimizer(work.module.parameters())
    size = max(spec.world_sizes)
    made = strategy_of(spec, work, optimizer, groups=groups, world_size=size, device=device).apply(
        "own", alone=size == 1
    )
    assert all(
        group["fused" if form == "fused" else "foreach"] is (form != "loop")
        for group in made.optimizer.param_groups
    )
    return made, work


def losses(strategy, make, form, groups, precision="fp32"):
    made, work = made_of(strategy, make, form, groups)
    scaler = Precision(precision, "cpu").scaler()
    generator = torch.Generator().manual_seed(1)
    answer = []
    for _ in range(STEPS):
        rows = torch.randn(SAMPLES, 5, generator=generator)
        with made.accumulate(True):
            loss = work.loss(made.module(rows), None)
            scaler.scale(loss).backward()
        scaler.step(made.optimizer)
        scaler.update()
        made.optimizer.zero_grad(set_to_none=True)
        answer.append(loss.item())
    return answer


def overflow(strategy, rank, groups):
    """Whether the scaler halves its scale on this rank, where one divided gradient of rank 1 alone overflowed."""
    made, work = made_of(strategy, adamw, "foreach", groups)
    scaler = Precision("fp16", "cpu").scaler()
    with made.accumulate(True):
        scaler.scale(work.loss(made.module(torch.ones(SAMPLES, 5)), None)).backward()
    before, divided = scaler.get_scale(), made.module.layers[0].weight.grad
    if rank == 1:
        divided.to_local().fill_(float("inf"))
    scaler.step(made.optimizer)
    scaler.update()
    return scaler.get_scale() == before / 2


def groups_of(spec, rank):
    parts = {WORLD: [tuple(range(WORLD))]}
    if spec.parallel.sharded:
        mesh = spec.parallel.mesh(WORLD)
        parts |= {mesh.keys()[axis]: members for axis, members in mesh.axes().items()}
    return make_groups(parts, rank=rank, world=WORLD, backend="gloo", timeout=timedelta(seconds=60))


def main(rank: int, _world: str) -> list[dict]:
    found, in_fp16, halved = {}, {}, {}
    for name in STRATEGIES:
        groups = groups_of(spec_of(name, fused=False), rank)
        for optimizer, make in OPTIMIZERS.items():
            for form in FORMS:
                found[f"{name} {optimizer} {form}"] = losses(name, make, form, groups)
        if "tp" in name:
            halved[name] = overflow(name, rank, groups)
        in_fp16[name] = [losses(name, adamw, form, groups, "fp16") for form in FORMS]
    return [found, in_fp16, halved]


if __name__ == "__main__":
    as_rank(main, world_size=WORLD, timeout_s=120)
