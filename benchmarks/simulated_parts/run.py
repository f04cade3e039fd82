"""Run a case, and put what the harness made of it beside what the simulation knows."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from simulated_device import ranks as processes

from scaling.analysis.about import Ending
from scaling.analysis.analyze import analyze
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.results import Analysis, Measured, Point, TrialStatus
from scaling.records import files
from scaling.records.check import read_checked
from scaling.records.paths import RunFolder
from scaling.records.run import LaunchStatus, status_of
from scaling.records.tables import SCHEMAS, Tables, in_memory
from scaling.settings.plan import Plan, make_plan
from scaling.settings.run import Ddp, Measure, Model, Spec
from scaling.settings.schedule import PROBE
from scaling.settings.topology import Topology
from scaling.units import format_bytes
from simulated_parts import rank as ranking
from simulated_parts.case import Case
from simulated_parts.truth import Seen

MS = 1e6
BUCKET_MB = 0.3
ANCHOR_NS = 1_000
"""Error of a device's stamps in host time: none in the simulation but rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A case that ran."""

    case: Case
    plan: Plan
    tables: Tables
    analysis: Analysis
    known: list[dict[int, list[Seen]]]
    """By rank: the detailed blocks' steps, by block."""

    @property
    def point(self) -> Point:
        """Its one world size."""
        return self.analysis.points[0]

    @property
    def plain_ns(self) -> float:
        """Mean plain step over all ranks."""
        step = self.point.step_ms
        assert step is not None
        return step.value * MS

    @property
    def detailed_ns(self) -> float:
        """Mean step over all ranks in the detailed blocks."""
        steps = in_memory(self.tables.steps.filter((pl.col("arm") == PROBE) & pl.col("detailed")))
        return float((steps["end_ns"] - steps["begin_ns"]).to_numpy().mean())

    def steps(self) -> list[list[Seen]]:
        """Every detailed step, as its ranks saw it."""
        blocks = sorted(self.known[0])
        return [
            [blocks_of_rank[block][k] for blocks_of_rank in self.known]
            for block in blocks
            for k in range(len(self.known[0][block]))
        ]

    def smallest_us(self) -> tuple[float, float, float]:
        """An all-reduce of the smallest size: from an idle device, as one of many, and on the link."""
        level = self.analysis.fabric.levels[0]
        point = min(level.curve, key=lambda p: p.bytes)
        assert level.host_latency_us is not None
        many = point.time_us.value
        return many + level.host_latency_us.value, many, _link_us(self.case, point.bytes)

    def as_gloo(self) -> Analysis:
        """What merging makes of the same records where it takes collectives for concurrent ones."""
        topology = dataclasses.replace(self.plan.spec.topology, backend="gloo")
        plan = dataclasses.replace(self.plan, spec=dataclasses.replace(self.plan.spec, topology=topology))
        return _analyzed(self.tables, plan)


def spec_of(case: Case) -> Spec:
    """The settings of a case; the records are analysed as NCCL's on CUDA, whose semantics the simulation has."""
    return Spec(
        model=Model(name="layers", target="simulated", args={}),
        topology=Topology(
            name="simulated", kind="local", hosts=1, ranks_per_host=case.ranks, device="cuda", backend="nccl"
        ),
        world_sizes=(case.ranks,),
        mode="weak",
        batch_per_rank=8,
        global_batch=8,
        precision="fp32",
        ddp=Ddp(bucket_cap_mb=BUCKET_MB),
        measure=Measure(
            name="simulated",
            rounds_min=case.rounds,
            rounds_max=case.rounds,
            steps=case.steps,
            lead_in=3,
            warmup_max=4,
            target_half_width=None,
            budget_s=3600.0,
            fabric_bytes_max=ranking.SWEEP[-1],
            step_timeout_s=60.0,
        ),
        seed=case.seed,
    )


@contextlib.contextmanager
def _folder(case: Case) -> Iterator[tuple[RunFolder, Plan]]:
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent) / "run")
        plan = make_plan(spec_of(case), run_id="simulated", created="2026-01-01T00:00:00+00:00", version="0")
        folder.launch(0).path.mkdir(parents=True)
        files.write_json(folder.plan, plan)
        yield folder, plan


def run(case: Case) -> Ran:
    """Run it on so many processes."""
    rng = np.random.default_rng(case.seed)
    off = (
        [0, *(rng.uniform(-1, 1, case.ranks - 1) * 5e7).astype(int).tolist()]
        if case.clocks
        else [0] * case.ranks
    )
    with _folder(case) as (folder, plan):
        seen = processes.run(_ranked, case.ranks, case=case, folder=str(folder.path), off=off)
        launch = LaunchStatus(
            index=0, world_sizes=(case.ranks,), state="done", finished=(case.ranks,), duration_s=60.0
        )
        files.write_json(folder.status, status_of(plan, [launch]))
        tables = _in_memory(read_checked(folder, plan))
    if tables.gaps:
        raise SystemExit(f"{case.name}: records were left out: {tables.gaps[0]}")
    return Ran(case=case, plan=plan, tables=tables, analysis=_analyzed(tables, plan), known=seen)


def _in_memory(tables: Tables) -> Tables:
    """The tables with their rows in memory: their files lie in the run's folder, which goes before they do."""
    rows = {name: in_memory(getattr(tables, name)).lazy() for name in SCHEMAS}
    return tables.having(rows, parts=(), block_files=(), scratch=None)


def _ranked(rank: int, ranks: int, *, case: Case, folder: str, off: list[int]) -> dict[int, list[Seen]]:
    return ranking.measured(rank, ranks, case, folder, off[rank])


def _analyzed(tables: Tables, plan: Plan) -> Analysis:
    trials = tuple(TrialStatus(world_size=t.world_size, status="done") for t in plan.trials)
    ending = Ending(duration_s=60.0, launches=1, trials=trials, device_clock_bound_ns=ANCHOR_NS)
    return analyze(RunRecords(tables, plan), ending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of the analysis beside the simulation's, ms (or a plain number)."""

    name: str
    found: Measured | None
    known: float

    @classmethod
    def of(cls, name: str, found: float, known: float) -> Figure:
        """A number without an interval."""
        return cls(name=name, found=Measured(float(found)), known=float(known))

    def beyond(self, least: float) -> float:
        """Relative error of what is off by more than `least`."""
        return abs(self.error / self.known) if abs(self.error) > least and self.known else 0.0

    @property
    def error(self) -> float:
        """Found less known."""
        return float("inf") if self.found is None else self.found.value - self.known

    def right(self, share: float, least: float) -> bool:
        """Whether it is right to within a share of itself, or an absolute error."""
        return abs(self.error) <= max(share * abs(self.known), least)

    @property
    def holds(self) -> bool:
        """Whether its interval holds the truth."""
        return self.found is not None and self.found.least <= self.known <= self.found.most

    @property
    def width(self) -> float:
        """Of the interval, over the truth."""
        return (self.found.most - self.found.least) / self.known if self.found and self.known else 0.0


def figures(ran: Ran, analysis: Analysis | None = None) -> list[Figure]:
    """Transfers by bucket, and what a step waits for; `analysis`: another one of the same records."""
    steps, point = ran.steps(), (analysis or ran.analysis).points[0]
    assert point.comm is not None
    alone = np.array([step[0].alone for step in steps]).mean(axis=0) / MS
    wait = np.mean([[seen.wait_ns for seen in step] for step in steps]) / MS
    transfer = np.mean([[seen.transfer_ns for seen in step] for step in steps]) / MS
    busy = np.mean([step[0].busy_ns for step in steps])
    n, sent = ran.case.ranks, point.comm.bytes_per_step
    rate = 2 * (n - 1) / n * sent * 8 / float(busy)
    of_buckets = [
        Figure(name=f"bucket {k} transfer", found=bucket.transfer_ms, known=float(alone[k]))
        for k, bucket in enumerate(point.comm.buckets)
    ]
    return [
        *of_buckets,
        Figure(name="exposed transfer", found=point.parts_ms.exposed_transfer, known=float(transfer)),
        Figure(name="exposed skew", found=point.parts_ms.exposed_skew, known=float(wait - transfer)),
        Figure(name="busbw", found=point.comm.busbw_gbit_s, known=rate),
    ]


def curve_figures(ran: Ran) -> list[Figure]:
    """The size sweep's points beside the link's own curve, us; a hundredth of a ms is 10 us there."""
    level = ran.analysis.fabric.levels[0]
    return [
        Figure(
            name=format_bytes(point.bytes),
            found=point.time_us * 1e-3,
            known=_link_us(ran.case, point.bytes) / 1e3,
        )
        for point in level.curve
    ]


def _link_us(case: Case, size: int) -> float:
    """What the link takes for an all-reduce of so many bytes."""
    sizes, times = zip(*case.link, strict=True)
    return float(np.interp(2 * (case.ranks - 1) / case.ranks * size, sizes, times))


def describe(figure: Figure) -> str:
    """One line."""
    value: Any = "-" if figure.found is None else f"{figure.found.value:9.4f}"
    return f"{figure.name:<20} {value} {figure.known:9.4f} {figure.error:+8.4f}"
