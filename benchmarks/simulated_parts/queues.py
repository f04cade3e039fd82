"""A rank late in its input, on devices whose streams share few work queues: who is named, and what details cost.

The trainings are users' own loops with a Probe: DDP, DDP with BatchNorm (whose root leaves the broadcast of a small
buffer at once), FSDP, HSDP, TP, and a loop that reduces each gradient itself. `old` stamps the ends of asynchronous
collectives as this program once did, on streams of torch's pool that wait for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import torch
from simulated_device import ranks as processes
from torch import nn

from scaling.analysis.results.point import Point
from scaling.cli.pipeline import rebuild
from scaling.records.collect import collect
from scaling.records.paths import RunFolder
from scaling.records.tables import Tables, in_memory
from scaling.worker.parallel.tap import Tap
from scaling.worker.probe import follow

LATE_MS = 20.0
PRODUCT_US, LATENCY_US, GB_S = 700, 20, 2.0
LAYERS, WIDTH = 8, 512
STEPS = 95
CONNECTIONS = (1, 2, 8, 32)
STRATEGIES = {"DDP": 2, "DDP, BatchNorm": 2, "FSDP": 2, "HSDP": 4, "TP": 2, "by hand": 2}
"""Name -> ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a loop's records say, and what is known; ms."""

    point: Point
    causes: tuple[str, ...]
    """Of its verdicts, the first one first."""
    light_ms: tuple[float, ...]
    """By rank, from the begin of a step to the end of backward's compute, in blocks of light stamps."""
    detailed_ms: tuple[float, ...]
    """The same in detailed blocks; empty: there are none."""
    plain_ms: float
    withheld: tuple[str, ...]

    @property
    def details_cost(self) -> float | None:
        """By how much details change the own time of the rank that they change most; None: there are none."""
        pairs = zip(self.detailed_ms, self.light_ms, strict=True)
        return max((abs(d / light - 1) for d, light in pairs), default=None) if self.detailed_ms else None


class _Net(nn.Module):
    def __init__(self, norms: bool) -> None:
        super().__init__()
        more = [nn.BatchNorm1d(WIDTH)] if norms else []
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), *more) for _ in range(LAYERS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def loop(
    rank: int,
    world: int,
    folder: str,
    strategy: str,
    connections: int,
    late_ms: float,
    wait_us: float,
    old: bool,
) -> None:
    """One rank's training."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    from scaling import Probe
    from scaling_simulator.device import configure, line, set_cost, set_link, sleep_us

    configure(launch_us=2, math=False, connections=connections, wait_us=wait_us)
    set_link(line(LATENCY_US, GB_S))
    set_cost(PRODUCT_US, "aten::mm", "aten::addmm")
    torch.manual_seed(0)
    net = _Net(strategy == "DDP, BatchNorm").to("sim")
    model: Any = net
    if strategy.startswith("DDP"):
        model = DistributedDataParallel(net, bucket_cap_mb=2)
    elif strategy == "TP":
        kinds = (ColwiseParallel, RowwiseParallel)
        plan = {f"layers.{k}.0": kinds[k % 2]() for k in range(LAYERS)}
        parallelize_module(net, init_device_mesh("sim", (world,), mesh_dim_names=("tp",)), plan)
    elif strategy != "by hand":
        shape, names = ((world,), ("dp",)) if strategy == "FSDP" else ((2, world // 2), ("copies", "dp"))
        mesh = init_device_mesh("sim", shape, mesh_dim_names=names)
        for layer in net.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    inputs = torch.ones(16, WIDTH)
    with _old_stamps() if old else contextlib.nullcontext(), Probe(model, run_dir=folder) as probe:
        for _ in range(STEPS):
            with probe.step():
                here = inputs.to("sim")
                if rank == world - 1 and late_ms:
                    sleep_us(late_ms * 1e3)
                model(here).square().mean().backward()
                if strategy == "by hand":
                    works = [torch.distributed.all_reduce(p.grad, async_op=True) for p in net.parameters()]
                    for work in works:
                        work.wait()
                optimizer.step()
                optimizer.zero_grad()


@contextlib.contextmanager
def _old_stamps() -> Iterator[None]:
    """Ends of asynchronous collectives on streams that wait for them, and nothing withheld."""
    after = Tap._stamp_end  # noqa: SLF001

    def end(self: Any, seen: Any, work: Any, *, waits: bool, device: Any) -> None:
        if waits or work is None:
            after(self, seen, work, waits=waits, device=device)
            return

        def done(_future: Any) -> None:
            seen.done = self._clock.stamp()

        work.get_future().add_done_callback(done)

    with (
        patch.object(Tap, "_stamp_end", end),
        patch.object(Tap, "_stamp_start", lambda *_: None),
        patch.object(follow, "withheld", lambda *_: ""),
    ):
        yield


def _whole(_tables: Tables) -> None:
    """Rows are looked at when all are read."""


def cell(
    folder: Path,
    strategy: str,
    connections: int,
    *,
    late_ms: float = LATE_MS,
    wait_us: float = 0,
    old: bool = False,
) -> Cell:
    """Train, and analyse the records."""
    world = STRATEGIES[strategy]
    more = {
        "strategy": strategy,
        "connections": connections,
        "late_ms": late_ms,
        "wait_us": wait_us,
        "old": old,
    }
    processes.run(loop, world, folder=str(folder), **more)
    run = RunFolder(folder)
    built = rebuild(run)
    tables, _ = collect(run, built.plan, _whole)
    own_ms = {True: (), False: ()} | _own_ms(tables)
    blocks = in_memory(tables.blocks)
    plain = blocks.filter(pl.col("arm") == "plain").select(
        (pl.col("end_ns") - pl.col("begin_ns")) / pl.col("steps")
    )
    return Cell(
        point=built.analysis.points[0],
        causes=tuple(verdict.cause for verdict in built.analysis.verdicts),
        light_ms=own_ms[False],
        detailed_ms=own_ms[True],
        plain_ms=float(plain.to_series().mean()) / 1e6,  # type: ignore[arg-type]
        withheld=tuple(sorted(set(blocks["withheld"]) - {""})),
    )


def _own_ms(tables: Tables) -> dict[bool, tuple[float, ...]]:
    """By whether details were stamped, each rank's own time: from a step's begin to the end of backward's compute."""
    kinds = in_memory(
        tables.blocks.filter(pl.col("arm") == "probe").select("launch", "block", "rank", "detailed")
    )
    steps = in_memory(tables.steps).join(kinds, on=["launch", "block", "rank"])
    mean = steps.group_by("detailed", "rank").agg(
        (pl.col("compute_end_ns") - pl.col("begin_ns")).mean() / 1e6
    )
    return {
        bool(kind): tuple(part.sort("rank")["compute_end_ns"]) for (kind,), part in mean.group_by("detailed")
    }
