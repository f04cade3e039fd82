"""Train DDP with the harness's tap open, for cases that its arms do not run: every collective with its stamps."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling.analysis.decompose.detailed import BlockStamps
from scaling.analysis.network.channel import Channel
from scaling.settings.run import KINDS
from scaling.worker.measure import step as stepping
from scaling.worker.parallel.streams import find
from scaling.worker.parallel.tap import Tap
from scaling_simulator import trace
from scaling_simulator.device import configure, set_cost, set_link
from scaling_simulator.trace import Task
from simulated_parts import rank as ranking
from simulated_parts.case import Case
from simulated_parts.device import SimDevice

STEPS, LEAD_IN = 6, 4
BUCKET_MB = 0.3
Floats = NDArray[np.float64]


class Row(NamedTuple):
    """One collective on one rank."""

    kind: str
    group: str
    bytes: int
    launch_ns: int
    start_ns: int
    """0: it ran on the stream that launched it."""
    done_ns: int


class Trained(NamedTuple):
    """What a rank saw of its steps."""

    steps: list[list[Row]]
    ends: list[tuple[int, int]]
    """(end of backward's compute, end of the step) of each, ns."""
    tasks: list[Task]


def prepared(case: Case, rank: int) -> tuple[SimDevice, ranking.Stalls]:
    """The device as the case has it, and what makes a rank late."""
    # Each stream has a queue of its own: DDP's hook takes streams of torch's pool, and one of them may share that of
    # the kernels, which then wait for a bucket in some steps.
    configure(launch_us=case.launch_us, kernel_us=2, math=False, connections=0)
    set_link(list(case.link))
    set_cost(case.product_us, "aten::mm", "aten::addmm")
    device = SimDevice(rank, origin_ns=ranking.ORIGIN_NS)
    stalls = ranking.Stalls(case, rank)
    stalls.on = True
    return device, stalls


def train(
    device: SimDevice,
    net: nn.Module,
    width: int,
    *,
    groups: Sequence[Any] = (),
    hook: Callable[..., Any] | None = None,
) -> Trained:
    """Some steps, the last of them seen by the tap and by the simulation itself.

    `groups`: those that its buckets go over, the first of them DDP's own; none: the default one.
    """
    groups = groups or [dist.group.WORLD]
    find(groups, device)
    warnings.filterwarnings("ignore", message=".broadcast_buffers. is deprecated", category=FutureWarning)
    ddp = DistributedDataParallel(
        net,
        device_ids=[device.torch_device.index],
        process_group=groups[0],
        bucket_cap_mb=BUCKET_MB,
        broadcast_buffers=False,
    )
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    x = torch.randn(8, width).to(device.torch_device)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    tap, ends = Tap(device.clock), []
    with device.clock.window(1000):
        with trace.recorded() as tasks, contextlib.ExitStack() as tapping:
            for step in range(LEAD_IN + STEPS):
                if step == LEAD_IN:
                    tapping.enter_context(tap.on())
                loss = ddp(x).square().mean()
                cell = [0]
                stepping._at_end_of_backward(loss, device.clock.stamp, cell)  # noqa: SLF001
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if step >= LEAD_IN:
                    ends.append((cell[0], device.clock.stamp()))
        seen = tap.take()
    resolve = device.clock.resolve
    rows = [
        Row(KINDS[c.kind], c.group.group_name, c.bytes, *resolve([c.launch, c.start, c.done])) for c in seen
    ]
    count = len(rows) // STEPS
    return Trained(
        steps=[rows[k * count : (k + 1) * count] for k in range(STEPS)],
        ends=[(*resolve(list(pair)),) for pair in ends],
        tasks=list(tasks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The steps of all ranks as arrays: S steps, R ranks, K collectives, ns."""

    rows: list[Row]
    """Of one step of one rank."""
    launch: Floats  # S x R x K
    start: Floats
    done: Floats
    compute_end: Floats  # S x R
    end: Floats

    @classmethod
    def of(cls, ranks: Sequence[Trained]) -> Together:
        """From what each rank saw."""
        cube = np.array([[[row[3:] for row in step] for step in rank.steps] for rank in ranks], dtype=float)
        ends = np.array([rank.ends for rank in ranks], dtype=float).transpose(1, 0, 2)
        cube = cube.transpose(1, 0, 2, 3)
        return cls(
            rows=ranks[0].steps[0],
            launch=cube[..., 0],
            start=cube[..., 1],
            done=cube[..., 2],
            compute_end=ends[..., 0],
            end=ends[..., 1],
        )

    def stamps(self, places: Sequence[int]) -> BlockStamps:
        """Some of a step's collectives, as a detailed block."""
        nothing, none = np.zeros_like(self.end), np.zeros((*self.end.shape, 0))
        chosen = list(places)
        names = {name: k for k, name in enumerate(dict.fromkeys(row.group for row in self.rows))}
        return BlockStamps(
            begin=nothing,
            end=self.end,
            input=nothing,
            backward=nothing,
            optimizer=nothing,
            compute_end=self.compute_end,
            sync_end=self.done[:, :, chosen].max(axis=2),
            ready=self.launch[:, :, chosen],
            launch=self.launch[:, :, chosen],
            start=self.start[:, :, chosen],
            done=self.done[:, :, chosen],
            bytes=np.array([self.rows[k].bytes for k in chosen], dtype=float),
            buffer_wait=nothing,
            earlier_wait=nothing,
            buffer_begin=none,
            buffer_end=none,
            channel=Channel.of("nccl", [names[self.rows[k].group] for k in chosen]),
        )
