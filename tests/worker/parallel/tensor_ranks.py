"""`tensor_ranks.py RANK STORE`: one of four Gloo ranks; trains divided models and whole ones by hand, told as JSON."""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from scaling.config.compose import requests
from scaling.spec.run import KINDS
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.models import language, mlp, synthetic, vision
from scaling.worker.parallel.choose import strategy_of
from scaling.worker.parallel.groups import make_groups
from scaling.worker.parallel.tensor import FusedAttention

WORLD, STEPS, SAMPLES = 4, 2, 2
PARTS = ("query", "key", "value")
ASKED = ["model=mlp", "topology=local", "topology.ranks_per_host=4", "topology.device=cpu", "world_sizes=[4]"]
MESHES = {
    "tp": ["parallel=tp"],
    "replicas": ["parallel=tp", "parallel.replicate=2", "parallel.tensor=2"],
    "fsdp_tp": ["parallel=fsdp_tp"],
    "hsdp_tp": ["parallel=hsdp_tp", "parallel.shard=1"],
}
MODELS = {
    "llama": lambda: language.llama(64, 2, 8, 4, 8, 128, 96, False, 32, 16),
    "tied": lambda: language.llama(64, 2, 8, 4, 8, 128, 96, True, 32, 16),
    "gpt2": lambda: language.gpt2(64, 2, 4, 97, 32, 16),
    "bert": lambda: language.bert(64, 2, 4, 128, 96, 32, 16),
    "vit": lambda: vision.vit(8, 64, 2, 4, 128, 32, 10),
    "mlp": lambda: mlp.build(32, 64, 3, 10),
    "synthetic": lambda: synthetic.build(0.1, 2, 0, 32, activations=64),
}


def made(name):
    """A workload whose dropouts are off: a rank drops within its own heads, which no single rank does alike."""
    torch.manual_seed(0)
    work = MODELS[name]()
    work.module.eval()
    return dataclasses.replace(work, optimizer=lambda given: torch.optim.SGD(given, lr=0.01))


def batches(work, rank):
    generator = torch.Generator().manual_seed(100 + rank)
    return [work.make_batch(SAMPLES, generator) for _ in range(STEPS)]


def by_hand(name, readers):
    work = made(name)
    optimizer = work.optimizer(work.module.parameters())
    every = [batches(work, reader) for reader in range(readers)]
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        found = [work.loss(work.module(mine[step][0]), mine[step][1]) for mine in every]
        (sum(found) / readers).backward()
        optimizer.step()
        losses.append([loss.item() for loss in found])
    return losses, work.module


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def weights(module):
    """By name, GPT-2's matrices as they were before they were divided: inputs x outputs, three in one."""
    found = {name: whole(p) for name, p in module.named_parameters()}
    for name in [one for one in found if one.endswith(("c_proj.weight", "c_fc.weight"))]:
        found[name] = found[name].t()
    for name, part in module.named_modules():
        if isinstance(part, FusedAttention):
            three = [[found.pop(f"{name}.{one}.{k}") for k in ("weight", "bias")] for one in PARTS]
            found[f"{name}.weight"] = torch.cat([weight.t() for weight, _ in three], 1)
            found[f"{name}.bias"] = torch.cat([bias for _, bias in three])
    return found


def difference(ours, theirs):
    worst = 0.0
    for name, mine in ours.items():
        worst = max(worst, float((mine - theirs[name]).abs().max()))
    return worst


def compare(name, mesh, rank, groups):

    (request,) = requests("run", [*ASKED, *MESHES[mesh]]).items
    degrees, work = request.spec.parallel.mesh(WORLD), made(name)
    losses, module = by_hand(name, degrees.data_parallel)
    reader = rank // degrees.tensor
    strategy = strategy_of(
        request.spec,
        copy.copy(work),
        work.optimizer(work.module.parameters()),
        groups=groups,
        world_size=WORLD,
        device=Cpu(),
    )
    ours = strategy.apply("plain", alone=False)
    off = 0.0
    for step, (inputs, targets) in enumerate(batches(work, reader)):
        ours.optimizer.zero_grad()
        with ours.accumulate(True):
            loss = work.loss(ours.module(inputs), targets)
            loss.backward()
        ours.optimizer.step()
        off = max(off, abs(float(whole(loss.detach())) - losses[step][reader]))
    found = {"loss": off, "weights": difference(weights(ours.module), dict(module.named_parameters()))}
    ours = strategy.apply("probe", alone=False, detailed=True)
    detail = ours.detail(detailed=True)
    with detail.taking() as take:
        for inputs, targets in batches(work, reader):
            with ours.accumulate(True):
                work.loss(ours.module(inputs), targets).backward()
            rows, waits = take(0)
    found["rows"] = [
        [KINDS[r.kind], ("backward", "forward")[r.phase], r.unit, r.bytes, r.group] for r in rows
    ]
    found["keys"] = degrees.keys()
    found["units"] = ours.units
    found["order"] = all(r.launch_ns <= r.done_ns and r.wait_ns <= r.resume_ns for r in rows)
    found["waits"] = len(waits)
    return found


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=timeout
    )
    parts = {WORLD: [tuple(range(WORLD))]}
    for overrides in MESHES.values():
        (request,) = requests("run", [*ASKED, *overrides]).items
        degrees = request.spec.parallel.mesh(WORLD)
        parts |= {degrees.keys()[axis]: of for axis, of in degrees.axes().items()}
    groups = make_groups(parts, rank=rank, world=WORLD, backend="gloo", timeout=timeout)
    found = {f"{name} {mesh}": compare(name, mesh, rank, groups) for name in MODELS for mesh in MESHES}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
