"""One rank of a case: the harness's own arms, probe, blocks and recorder, on the simulated device."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from scaling.records import format as records
from scaling.records.files import read_json
from scaling.records.paths import RunFolder
from scaling.settings import plan as plans
from scaling.settings.plan import Plan
from scaling.settings.schedule import BARE_ONE, FABRIC, PAIRS, PROBE, REPLAY, round_blocks, settling_steps
from scaling.worker.accelerator.accelerator import Precision
from scaling.worker.data.feed import Feed
from scaling.worker.data.workload import Workload, sgd
from scaling.worker.measure.arms import Arms
from scaling.worker.measure.blocks import BlockRunner
from scaling.worker.measure.exchange import Exchange
from scaling.worker.measure.inject import Faults
from scaling.worker.measure.recorder import Recorder
from scaling.worker.parallel.groups import make_groups
from scaling_simulator import trace
from scaling_simulator.device import configure, host_spend_us, set_cost, set_link, sleep_us
from simulated_parts.case import CLOCK_BOUND_NS, Case
from simulated_parts.device import SimDevice
from simulated_parts.truth import Seen, of_steps

SWEEP = tuple(2**k for k in range(10, 22))
ORIGIN_NS = 10**14
TIMEOUT = timedelta(seconds=120)
STALLED = (BARE_ONE, REPLAY, FABRIC, PAIRS)
"""Arms that a late rank is not late in."""


class Stalls:
    """Makes a rank late, and kernels and hosts noisy."""

    def __init__(self, case: Case, rank: int) -> None:
        self._case, self._mine = case, rank == case.late_rank
        self._rng = random.Random(f"{case.seed}/{case.noise_seed}/{rank}")
        self.on = False

    def step(self) -> None:
        """At the begin of each forward."""
        case = self._case
        if case.noise:
            factor = self._rng.lognormvariate(0, case.noise)
            set_cost(case.product_us * factor, "aten::mm", "aten::addmm")
            host_spend_us(abs(self._rng.gauss(0, case.noise)) * case.product_us)
        if not (self._mine and self.on):
            return
        if case.late_on == "stream":
            sleep_us(case.late_us)
        else:  # as a rank that reads its loss and writes a log: what only its host does is hidden behind its device
            torch.accelerator.synchronize()
            host_spend_us(case.late_us)


class Layers(nn.Module):
    """Square layers of different widths, each on its own input."""

    def __init__(self, widths: tuple[int, ...], stalls: Stalls) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(w, w, bias=False) for w in widths)
        self.joints = [(a, b) for a, b in itertools.pairwise(widths)]
        self._stalls = stalls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A chain: each layer's output is cut or filled up to the next one's width."""
        self._stalls.step()
        for layer, (_, width) in zip(self.layers, [*self.joints, (0, 0)], strict=True):
            x = layer(x)
            if width:
                x = nn.functional.pad(x, (0, max(0, width - x.shape[1])))[:, :width]
        return x


def measured(rank: int, ranks: int, case: Case, folder: str, fixed_ns: int) -> dict[int, list[Seen]]:
    """Run the plan in `folder` and write this rank's file; returns the detailed blocks as the simulation knows them."""
    configure(launch_us=case.launch_us, kernel_us=2, math=False)
    set_link(list(case.link))
    set_cost(case.product_us, "aten::mm", "aten::addmm")
    plan = read_json(Path(folder) / "plan.json", Plan, plans.SCHEMA)
    launch = RunFolder(Path(folder)).launch(0)
    device = SimDevice(rank, origin_ns=ORIGIN_NS + fixed_ns)
    (trial,) = plan.trials
    groups = make_groups(
        {ranks: [tuple(range(ranks))]}, rank=rank, world=ranks, backend="simccl", timeout=TIMEOUT
    )
    stalls = Stalls(case, rank)
    torch.manual_seed(0)
    module = Layers(case.widths, stalls).to(device.torch_device)
    workload = Workload(
        module=module,
        make_batch=lambda n, generator: (torch.randn(n, case.widths[0], generator=generator), torch.zeros(n)),
        loss=lambda y, _t: y.square().mean(),
        optimizer=sgd,
    )

    def feed(batch: int) -> Feed:
        return Feed([device.stage(workload.make_batch(batch, torch.Generator().manual_seed(rank)))])

    arms = Arms(
        spec=plan.spec,
        variant=None,
        trial=trial,
        workload=workload,
        optimizer=workload.optimizer(module.parameters()),
        groups=groups,
        device=device,
        precision=Precision("fp32", device.type),
        faults=Faults(plan.spec.inject, rank=rank, first_on_host=False),
        feed=feed,
    )
    for arm, detailed, half in arms.warmed():
        with arms.open(arm, detailed=detailed, half=half) as opened:
            opened.loop.plain()
            if arm == PROBE:
                with opened.detail.taking() as take, device.clock.window(arms.stamps(opened)):
                    opened.loop.plain()
                    take(opened.loop.forward_end_ns)
                arms.messages(opened.detail.wire)
    head = records.HeadRecord(
        schema=records.SCHEMA,
        rank=rank,
        host=0,
        hostname="simulated",
        world=ranks,
        groups={str(n): list(g.ranks) for n, g in groups.items()},
    )
    recorder = Recorder(launch.rank(rank), head)
    runner = BlockRunner(
        device=device,
        groups=groups,
        exchange=Exchange(device),
        recorder=recorder,
        collectives=plan.spec.measure.collectives,
        backend="simccl",
    )
    _compare_clocks(recorder, device, rank, fixed_ns, "begin", case.seed)
    lead_in = settling_steps(plan.spec) + 3
    seen: dict[int, list[Seen]] = {}
    for number in range(case.rounds):
        for block in round_blocks(plan, plan.trials, 0, number):
            dist.barrier(groups[ranks].control)
            if not block.runs_on(rank):
                continue
            stalls.on = block.arm not in STALLED
            if block.arm == PROBE and block.detailed:
                with trace.recorded() as tasks:
                    runner.run(block, arms, SWEEP, steps=case.steps, lead_in=lead_in)
                seen[block.id] = of_steps(tasks, case.steps, len(arms.wire()))
            else:
                runner.run(block, arms, SWEEP, steps=case.steps, lead_in=lead_in)
            stalls.on = False
    _compare_clocks(recorder, device, rank, fixed_ns, "end", case.seed)
    recorder.end()
    recorder.close()
    return seen


def _compare_clocks(
    recorder: Recorder, device: SimDevice, rank: int, fixed_ns: int, at: str, seed: int
) -> None:
    """What a comparison with rank 0's clock would say: the offset, to within its bound."""
    error = round(random.Random(f"{seed}/{rank}/{at}").uniform(-0.2, 0.2) * CLOCK_BOUND_NS) if rank else 0
    bound = CLOCK_BOUND_NS if rank else 0
    recorder.note(
        records.ClockRecord(at=at, offset_ns=fixed_ns + error, bound_ns=bound, time_ns=device.now_ns())
    )
