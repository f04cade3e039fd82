"""Loops of one's own for benchmarks/zoo.py: each trains without a fault and then with one, in one launch.

A loop is an ordinary training with a Probe's two lines. The fault is a sleep of 40 ms on one rank.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hosts import run_on_hosts

from scaling.analysis.results import NO_CAUSE, SelfTestCase
from scaling.analysis.selftest.grade import LATE_MS, LOST, FaultCase, grade, straggler_ms
from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan

if TYPE_CHECKING:
    import torch

STEPS = 105
"""5 of warm-up and 10 rounds of the probe."""
RATE = "2gbit"
CONTROL, FAULT = "control", "fault"

Stall = Callable[[str], None]
"""Called in each phase of a step; sleeps in the phase of the fault."""


@dataclass(frozen=True)
class Loop:
    """A kind of loop and its fault."""

    train: Callable[[Any, int, Stall], None]
    """Trains STEPS steps, given a Probe's opener, the rank and the stalls."""
    rank: int
    phase: str
    told: str = ""
    """The phase that a verdict may name, if not this one."""


def cnn(*, norm: bool = True) -> torch.nn.Module:
    """A small CNN on images of 16 pixels."""
    from torch import nn

    def layer(before: int) -> list[nn.Module]:
        return [nn.Conv2d(before, 16, 7, padding=3), *([nn.BatchNorm2d(16)] if norm else []), nn.ReLU()]

    return nn.Sequential(
        *layer(3), *layer(16), nn.MaxPool2d(2), *layer(16), nn.Flatten(), nn.Linear(1024, 10)
    )


def images(count: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of random images with labels."""
    import torch

    torch.manual_seed(rank)
    return torch.randn(count, 3, 16, 16), torch.randint(10, (count,))


def plain(
    opened: Any,
    rank: int,
    stall: Stall,
    *,
    norm: bool = True,
    micro_steps: int = 1,
    no_sync: bool = True,
    forwards: int = 1,
    amp: bool = False,
    frozen: bool = False,
    clips: bool = False,
    compiles: bool = False,
) -> None:
    """A loop over one model."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    model = cnn(norm=norm)
    if frozen:
        model[0].requires_grad_(requires_grad=False)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    called = torch.compile(ddp, backend="aot_eager") if compiles else ddp
    optimizer = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], lr=1e-3)
    inputs, targets = images(64 // (micro_steps * forwards), rank)
    with opened(called) as probe:
        for _ in range(STEPS):
            with probe.step():
                for micro in range(micro_steps):
                    waits = no_sync and micro < micro_steps - 1
                    with ddp.no_sync() if waits else contextlib.nullcontext():
                        if micro == 0:
                            stall("input")
                        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
                            outputs_of = [called(inputs) for _ in range(forwards)]
                            losses = [cross_entropy(outputs, targets) for outputs in outputs_of]
                        stall("forward")
                        # Where the gradient enters the model: the loss and its own gradient count as forward.
                        outputs_of[-1].register_hook(lambda _gradient: stall("backward"))
                        torch.stack(losses).sum().backward()
                if clips:
                    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
                    stall("optimizer")
                optimizer.step()
                optimizer.zero_grad()


def two_models(opened: Any, rank: int, stall: Stall) -> None:
    """A generator, which is probed, and before it a discriminator in a DDP wrapper of its own."""
    import torch
    from torch import nn
    from torch.nn.functional import binary_cross_entropy_with_logits as judged_as
    from torch.nn.parallel import DistributedDataParallel

    generator = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 768)
    )
    discriminator = nn.Sequential(nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 1))
    makes, judges = (
        DistributedDataParallel(m, gradient_as_bucket_view=True) for m in (generator, discriminator)
    )
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-4) for m in (makes, judges)]
    torch.manual_seed(rank)
    noise, real = torch.randn(256, 64), torch.randn(256, 768)
    ones, zeros = torch.ones(256, 1), torch.zeros(256, 1)
    with opened(makes) as probe:
        for _ in range(STEPS):
            with probe.step():
                stall("input")
                loss = judged_as(judges(real), ones) + judged_as(judges(generator(noise).detach()), zeros)
                optimizers[1].zero_grad()
                loss.backward()
                optimizers[1].step()
                optimizers[0].zero_grad()
                judged_as(discriminator(makes(noise)), ones).backward()
                optimizers[0].step()


def _with(**habits: Any) -> Callable[[Any, int, Stall], None]:
    return lambda opened, rank, stall: plain(opened, rank, stall, **habits)


LOOPS: Mapping[str, Loop] = {
    "accumulation": Loop(_with(micro_steps=4), 1, "input"),
    "no no_sync": Loop(_with(micro_steps=4, no_sync=False), 0, "input"),
    "compile": Loop(_with(compiles=True, norm=False), 1, "forward"),
    "AMP": Loop(_with(amp=True), 0, "backward"),
    "frozen layers": Loop(_with(frozen=True), 1, "backward"),
    "two forwards": Loop(_with(forwards=2), 0, "forward"),
    "clipping": Loop(_with(clips=True), 1, "optimizer"),
    # Its Probe sees one model's forward alone, so the other's counts as input, and no verdict may tell them apart.
    "two models": Loop(two_models, 1, "input", told="step"),
}
"""The fault of accumulation is in the first micro-step alone."""


def cases(name: str) -> tuple[FaultCase, ...]:
    """What has to be found in a loop, without and with its fault."""
    loop = LOOPS[name]
    return (
        FaultCase(name=f"{name}, {CONTROL}", overrides=(), accepted=(*NO_CAUSE, *LOST)),
        FaultCase(
            name=f"{name}, rank {loop.rank} late in {loop.phase}",
            overrides=(),
            accepted=("straggler",),
            possible=LOST,
            expected_ms=LATE_MS,
            attributed_ms=straggler_ms,
            rank=loop.rank,
            phase=loop.told or loop.phase,
        ),
    )


def measured(name: str, folder: Path) -> dict[str, SelfTestCase | None]:
    """Train and grade both; what the folder holds already is only graded."""
    if not (folder / FAULT).exists():
        folder.mkdir(parents=True, exist_ok=True)
        run_on_hosts(__file__, [name, str(folder)], hosts=2, rate=RATE, folder=folder)
    graded: dict[str, SelfTestCase | None] = {}
    for case, part in zip(cases(name), (CONTROL, FAULT), strict=True):
        run = RunFolder(folder / part)
        graded[case.name] = grade(case, rebuild(run).analysis, read_plan(run))
    return graded


def worker(name: str, folder: Path) -> None:
    """One rank of both trainings."""
    import functools

    import torch
    import torch.distributed as dist

    from scaling import Probe

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, loop = dist.get_rank(), LOOPS[name]
    for part in (CONTROL, FAULT):
        late_in = loop.phase if part == FAULT and rank == loop.rank else ""

        def stall(phase: str, late_in: str = late_in) -> None:
            if phase == late_in:
                time.sleep(LATE_MS / 1e3)

        loop.train(functools.partial(Probe, run_dir=folder / part), rank, stall)
        dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a compiled model's helpers need not be waited for


if __name__ == "__main__":
    worker(sys.argv[1], Path(sys.argv[2]))
