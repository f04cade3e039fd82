"""One of the ranks that share a GPU: trains clean and with rank 1 late in its input, plain, under a Probe, and traced.

    torchrun --nproc-per-node 2 shared_rank.py MODEL STRATEGY LATE_MS FOLDER [--simulated CONNECTIONS [--ahead]]

Plain blocks come in pairs, one clean and one late, by turns; their difference is what the late rank truly costs.
FOLDER/clean and FOLDER/late are the Probe's runs, FOLDER/rank-R.json the plain times and the device's own collectives.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from resnet import resnet

from scaling import Probe

LATE_RANK = 1
WARMUP, PAIRS, BLOCK, PROBED, TRACED = 15, 4, 15, 160, 8
"""Steps before anything is measured; pairs of plain blocks, steps of a block; steps under a Probe, and traced."""
EXACT = (5, 2, 3, 80, 3)
"""The same on the virtual clock, which is exact and takes the host longer."""
LOOK = 7
"""A simulated host that runs ahead reads the loss in every so many steps, which ends its lead."""
KERNEL_US, PRODUCT_US, LAUNCH_US, LINK_US, LINK_GB_S = 3.0, 400.0, 1.0, 20.0, 1.0
"""A simulated device's: what a kernel takes, a convolution or matrix product, and a launch; its link."""
PRODUCTS = ("convolution_overrideable", "convolution_backward_overrideable", "addmm", "mm", "bmm")
REDUCTIONS = ("all_reduce", "reduce_scatter", "all_gather")


class Gpu:
    """The device that all ranks share, with NCCL."""

    kind, backend = "cuda", "nccl"

    def __init__(self) -> None:
        torch.cuda.set_device(0)

    def device(self) -> torch.device:
        """Ranks have one device."""
        return torch.device("cuda", 0)

    def now_ms(self) -> float:
        """The host's clock, once the device is done."""
        torch.cuda.synchronize()
        return time.perf_counter() * 1e3

    def be_late(self, ms: float) -> None:
        """The host sleeps."""
        time.sleep(ms / 1e3)

    @contextlib.contextmanager
    def traced(self, collectives: list[dict[str, Any]]) -> Iterator[None]:
        """Collects NCCL's kernels as torch.profiler has them, in their order on the device."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
            yield
            torch.cuda.synchronize()
        path = f"/tmp/scaling-trace-{os.getpid()}.json"
        trace.export_chrome_trace(path)
        collectives.extend(kernels_of(json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]))
        Path(path).unlink()


class Simulated:
    """The simulated accelerator, on its virtual clock; each rank has a device of its own."""

    kind, backend = "sim", "simccl"

    def __init__(self, connections: int) -> None:
        from scaling_simulator import load
        from scaling_simulator.device import configure, line, set_cost, set_link

        load()
        ranks, self._rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        configure(
            devices=ranks, launch_us=LAUNCH_US, kernel_us=KERNEL_US, math=False, connections=connections
        )
        set_cost(PRODUCT_US, *(f"aten::{name}" for name in PRODUCTS))
        set_link(line(latency_us=LINK_US, gb_s=LINK_GB_S))
        torch.accelerator.set_device_index(self._rank)

    def device(self) -> torch.device:
        """The rank's own."""
        return torch.device("sim", self._rank)

    def now_ms(self) -> float:
        """The simulated clock, once the device is done."""
        from scaling_simulator.device import host_ms

        torch.accelerator.synchronize()
        return host_ms()

    def be_late(self, ms: float) -> None:
        """The host works for so long."""
        from scaling_simulator.device import host_spend_us

        host_spend_us(ms * 1e3)

    @contextlib.contextmanager
    def traced(self, collectives: list[dict[str, Any]]) -> Iterator[None]:
        """Collects the device's own record of its collectives."""
        from scaling_simulator import trace

        with trace.recorded() as tasks:
            yield
        sent = sorted((t for t in tasks if t.kind in REDUCTIONS), key=lambda task: task.start_ns)
        collectives.extend({"kind": t.kind, "ms": (t.end_ns - t.start_ns) / 1e6} for t in sent)


def kernels_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """NCCL's reductions and gathers among the events of a Chrome trace, in order of their begin: kind and ms."""
    names = {"AllReduce": "all_reduce", "ReduceScatter": "reduce_scatter", "AllGather": "all_gather"}
    sent = []
    for event in events:
        if event.get("cat") == "kernel" and "nccl" in str(event.get("name")).lower():
            kind = next((kind for name, kind in names.items() if name in event["name"]), None)
            if kind is not None:
                sent.append((float(event["ts"]), {"kind": kind, "ms": float(event["dur"]) / 1e3}))
    return [each for _, each in sorted(sent, key=lambda pair: pair[0])]


def build(
    model: str, device: torch.device, *, small: bool
) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor], int, Callable[[], None]]:
    """The module, its loss on a batch that comes from the host, the samples of a batch, and what brings the batch."""
    batch_of: dict[str, Any] = {}
    if model == "resnet50":
        batch, image, classes = (4, 32, 10) if small else (48, 224, 1000)
        module = resnet((1, 1, 1, 1), 16, classes) if small else resnet()
        images, labels = torch.randn(batch, 3, image, image), torch.randint(classes, (batch,))

        def bring() -> None:
            batch_of["x"] = pinned[0].to(device, non_blocking=True)
            batch_of["y"] = pinned[1].to(device, non_blocking=True)

        def loss(trained: nn.Module) -> torch.Tensor:
            return nn.functional.cross_entropy(trained(batch_of["x"]), batch_of["y"])

        pinned = [images, labels]
    else:
        from transformers import GPT2Config, GPT2LMHeadModel

        batch, tokens = (2, 32) if small else (4, 512)
        sizes = (
            {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 500, "n_positions": 64} if small else {}
        )
        module = GPT2LMHeadModel(GPT2Config(**sizes))
        pinned = [torch.randint(500, (batch, tokens))]

        def bring() -> None:
            batch_of["x"] = pinned[0].to(device, non_blocking=True)

        def loss(trained: nn.Module) -> torch.Tensor:
            return trained(input_ids=batch_of["x"], labels=batch_of["x"]).loss

    if device.type == "cuda":
        pinned[:] = [tensor.pin_memory() for tensor in pinned]
    return module.to(device), loss, batch, bring


def spread(module: nn.Module, strategy: str, device: torch.device) -> nn.Module:
    """The module under DDP or fully_shard, by the blocks of a language model."""
    if strategy == "ddp":
        ids = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(module, device_ids=ids)
    from torch.distributed.fsdp import fully_shard

    for block in module.transformer.h:  # type: ignore[union-attr]
        fully_shard(block)
    fully_shard(module)
    return module


def main() -> None:
    """Run all parts, and write what this rank saw."""
    arguments = argparse.ArgumentParser()
    for name in ("model", "strategy"):
        arguments.add_argument(name)
    arguments.add_argument("late_ms", type=float)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--simulated", type=int)
    arguments.add_argument("--ahead", action="store_true", help="its host runs ahead, as that of a GPU does")
    asked = arguments.parse_args()
    machine: Any = Gpu() if asked.simulated is None else Simulated(asked.simulated)
    dist.init_process_group(machine.backend)
    rank, device = dist.get_rank(), machine.device()
    torch.manual_seed(0)
    module, loss_of, batch, bring = build(asked.model, device, small=asked.simulated is not None)
    trained = spread(module, asked.strategy, device)
    optimizer = torch.optim.SGD(trained.parameters(), 1e-4, momentum=0.9)

    looks = itertools.cycle([False] * (LOOK - 1) + [True] if asked.ahead else [True])

    def step(*, late: bool) -> None:
        bring()
        if late and rank == LATE_RANK:
            machine.be_late(asked.late_ms)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(trained)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if asked.simulated is not None and next(looks):
            loss.item()  # a simulated host's lead has no end, and would hide that it is late

    def block(size: int, *, late: bool) -> float:
        """Milliseconds of a plain step in a block of them."""
        for _ in range(LOOK if asked.ahead else 1):
            step(late=late)
        begin = machine.now_ms()
        for _ in range(size):
            step(late=late)
        return float(machine.now_ms() - begin) / size

    warmup, pairs, size, probed, steps = (
        (WARMUP, PAIRS, BLOCK, PROBED, TRACED) if asked.simulated is None else EXACT
    )
    if asked.ahead:
        warmup, size = LOOK, LOOK

    for _ in range(warmup):
        step(late=False)
    plain: dict[str, list[float]] = {"clean": [], "late": []}
    for pair in range(pairs):
        for name in ("clean", "late") if pair % 2 == 0 else ("late", "clean"):
            plain[name].append(block(size, late=name == "late"))
    for name in ("clean", "late"):
        with Probe(trained, run_dir=asked.folder / name, batch=batch, name=asked.model) as probe:
            for _ in range(probed):
                with probe.step():
                    step(late=name == "late")
        machine.now_ms()
    collectives: list[dict[str, Any]] = []
    with machine.traced(collectives):
        for _ in range(steps):
            step(late=False)
    written = {"plain_ms": plain, "collectives": collectives, "traced": steps}
    (asked.folder / f"rank-{rank}.json").write_text(json.dumps(written), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
