"""`tensor_ranks.py RANK STORE WORLD`: a Gloo rank; trains divided models and whole ones by hand, told as JSON."""

from __future__ import annotations

import copy
import dataclasses
import sys
from datetime import timedelta

import torch
from support.gloo_ranks import as_rank
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from scaling.config.compose import requests
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES
from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.measure.arms import strategy_of
from scaling.worker.models import language, mlp, synthetic, vision
from scaling.worker.models.options import shaped
from scaling.worker.parallel.groups import make_groups
from scaling.worker.parallel.tensor import FusedAttention

WORLD, STEPS, SAMPLES = int(sys.argv[3]), 2, 2
PARTS = ("query", "key", "value")
ASKED = ["model=mlp", "topology=local", "topology.ranks_per_host=4", "topology.device=cpu"]
TOKENS = "parallel.sequence=true"
MESHES = {
    2: {"tp": ["parallel=tp"], "tp tokens": ["parallel=tp", TOKENS]},
    4: {
        "tp": ["parallel=tp"],
        "replicas": ["parallel=tp", "parallel.replicate=2", "parallel.tensor=2"],
        "fsdp_tp": ["parallel=fsdp_tp"],
        "hsdp_tp": ["parallel=hsdp_tp", "parallel.shard=1"],
        "tp tokens": ["parallel=tp", TOKENS],
        "fsdp_tp tokens": ["parallel=fsdp_tp", TOKENS],
        "hsdp_tp tokens": ["parallel=hsdp_tp", "parallel.shard=1", TOKENS],
    },
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


WAYS = {
    "bf16": ["precision=bf16"],
    "checkpointing": ["checkpointing=true"],
    "accumulation": ["accumulation_steps=2"],
    "hidden dropout": [],
    "dropout": [],
}
"""Other ways to train."""
EVERY = ("llama", "tied", "gpt2", "bert", "vit", "mlp", "synthetic")
TRIED = {
    (2, "tp"): (*EVERY, *WAYS),
    (2, "tp tokens"): (
        "llama",
        "gpt2",
        "vit",
        "synthetic",
        "bf16",
        "checkpointing",
        "accumulation",
        "dropout",
    ),
    **{(4, mesh): EVERY for mesh in ("tp", "replicas", "hsdp_tp")},
    (4, "fsdp_tp"): (*EVERY, "bf16", "checkpointing", "accumulation"),
    (4, "tp tokens"): tuple(name for name in EVERY if name != "mlp"),
    (4, "fsdp_tp tokens"): ("llama", "vit", "bf16", "checkpointing", "accumulation"),
    (4, "hsdp_tp tokens"): ("llama", "vit"),
}
"""Models, and ways to train one, over each mesh of a world."""


def made(name, way=""):
    """A workload. Its dropouts are off unless asked for: within attention a rank drops in its own heads."""
    torch.manual_seed(0)
    work = MODELS[name]()
    work.module.train("dropout" in way)
    for part in work.module.modules():
        if way == "hidden dropout" and isinstance(getattr(part, "attn_dropout", None), torch.nn.Dropout):
            part.attn_dropout.p = 0.0
    return dataclasses.replace(work, optimizer=lambda given: torch.optim.SGD(given, lr=0.01))


def batches(work, rank):
    generator = torch.Generator().manual_seed(100 + rank)
    return [work.make_batch(SAMPLES, generator) for _ in range(STEPS)]


def micro_steps(spec, step):
    """The batches of a step."""
    return range(STEPS) if spec.accumulation_steps == STEPS else [step]


def by_hand(work, spec, readers):
    """Losses by step, micro-step and reader; the gradients of the first step; the module."""
    optimizer, autocast = work.optimizer(work.module.parameters()), Precision(spec.precision, "cpu").autocast
    every = [batches(work, reader) for reader in range(readers)]
    torch.manual_seed(spec.seed)
    losses, first = [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        losses.append([])
        for micro in micro_steps(spec, step):
            with autocast():
                found = [work.loss(work.module(mine[micro][0]), mine[micro][1]) for mine in every]
            (sum(found) / readers).backward()
            losses[-1].append([loss.item() for loss in found])
        first = first or weights(work.module, gradient)
        optimizer.step()
    return losses, first, work.module


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradient(parameter):
    return parameter.grad.clone()


def weights(module, of=lambda parameter: parameter):
    """By name, GPT-2's matrices as they were before they were divided: inputs x outputs, three in one."""
    found = {
        name.replace("parametrizations.", "").removesuffix(".original"): whole(of(p))
        for name, p in module.named_parameters()
    }
    fused = [name for name, part in module.named_modules() if isinstance(part, FusedAttention)]
    linear = [
        n for n, part in module.named_modules() if n.endswith(("c_proj", "c_fc")) and type(part) is nn.Linear
    ]
    for name in linear:
        found[f"{name}.weight"] = found[f"{name}.weight"].t()
    for name in fused:
        three = [[found.pop(f"{name}.{one}.{k}") for k in ("weight", "bias")] for one in PARTS]
        found[f"{name}.weight"] = torch.cat([weight.t() for weight, _ in three], 1)
        found[f"{name}.bias"] = torch.cat([bias for _, bias in three])
    return found


def difference(ours, theirs):
    return max(float((mine - theirs[name]).abs().max()) for name, mine in ours.items())


def relative(ours, theirs):
    """The largest difference of a tensor, over its largest number, or a thousandth of the largest of all.

    A bias that adds the same to every score of attention has no gradient but rounding errors.
    """
    largest = {name: float(tensor.abs().max()) for name, tensor in theirs.items()}
    least = max(max(largest.values()) / 1000, 1e-12)
    return max(float((mine - theirs[n]).abs().max()) / max(largest[n], least) for n, mine in ours.items())


def compare(name, overrides, rank, world, groups, way=""):
    (request,) = requests("run", [*ASKED, f"world_sizes=[{world}]", *overrides]).items
    spec = request.spec
    degrees, work = spec.parallel.mesh(world), made(name, way)
    losses, gradients, module = by_hand(made(name, way), spec, degrees.data_parallel)
    reader = rank // degrees.tensor
    strategy = strategy_of(
        spec,
        shaped(copy.copy(work), spec),
        work.optimizer(work.module.parameters()),
        groups=groups,
        world_size=world,
        device=Cpu(),
    )
    ours, autocast = strategy.apply("plain", alone=False), Precision(spec.precision, "cpu").autocast
    off, first, told = 0.0, {}, []
    for step in range(STEPS):
        ours.optimizer.zero_grad()
        for place, micro in enumerate(micro_steps(spec, step)):
            inputs, targets = batches(work, reader)[micro]
            with ours.accumulate(place == len(micro_steps(spec, step)) - 1):
                with autocast():
                    loss = work.loss(ours.module(inputs), targets)
                loss.backward()
            told.append(float(whole(loss.detach())))
            off = max(off, abs(told[-1] - losses[step][place][reader]))
        first = first or weights(ours.module, gradient)
        ours.optimizer.step()
    found = {
        "loss": off,
        "gradients": relative(first, gradients),
        "weights": difference(weights(ours.module), dict(module.named_parameters())),
        "losses": told,
        "kept": {n: float(p.detach().double().sum()) for n, p in weights(ours.module).items()},
        "reader": reader,
    }
    ours = strategy.apply("probe", alone=False)
    detail = ours.detail(detailed=True)
    with detail.taking() as take:
        for inputs, targets in batches(work, reader):
            with ours.accumulate(True):
                with autocast():
                    loss = work.loss(ours.module(inputs), targets)
                loss.backward()
            rows, waits = take(0)
    found["rows"] = [[KINDS[r.kind], PHASES[r.phase], r.unit, r.bytes, r.group] for r in rows]
    found["keys"] = degrees.keys()
    found["units"] = [name for name, part in ours.module.named_modules() if isinstance(part, FSDPModule)]
    found["order"] = all(r.launch_ns <= r.done_ns and r.wait_ns <= r.resume_ns for r in rows)
    found["waits"] = len(waits)
    return found


def main(rank: int, _world: str) -> dict:
    world, timeout = WORLD, timedelta(seconds=60)
    parts = {world: [tuple(range(world))]}
    for overrides in MESHES[world].values():
        (request,) = requests("run", [*ASKED, f"world_sizes=[{world}]", *overrides]).items
        degrees = request.spec.parallel.mesh(world)
        parts |= {degrees.keys()[axis]: of for axis, of in degrees.axes().items()}
    groups = make_groups(parts, rank=rank, world=world, backend="gloo", timeout=timeout)
    found = {}
    for mesh, overrides in MESHES[world].items():
        for name in TRIED[world, mesh]:
            model = name if name in MODELS else "gpt2" if "dropout" in name else "llama"
            asked, way = [*overrides, *WAYS.get(name, ())], name if name in WAYS else ""
            found[f"{name} {mesh}"] = compare(model, asked, rank, world, groups, way)
    return found


if __name__ == "__main__":
    as_rank(main, world_size=WORLD)
