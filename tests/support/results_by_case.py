"""A small run to log: plan, analysis, comparison and histories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support import results

from scaling.analysis.results import (
    Analysis,
    ArmTimes,
    Comparison,
    CurvePoint,
    Fabric,
    FabricLevel,
    Loss,
    Measured,
    Point,
    PointComparison,
    Quality,
    Remedy,
    RunInfo,
    StepHistory,
    StepParts,
    TrialStatus,
    Verdict,
)
from scaling.settings.plan import Plan, make_plan
from scaling.settings.run import Model, Tracking

RUN_ID = "20260102-030405-c0ffee"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
STEPS = 200
"""Enough for a file of more than one block."""


def plan(mode: str = "offline", **tracking: Any) -> Plan:
    base = results.spec()
    spec = replace(
        base,
        model=Model(name="mlp", target="scaling.worker.models.mlp.build", args={"width": 64, "token_dim": 8}),
        topology=replace(base.topology, hosts=2),
        world_sizes=(1, 2),
        global_batch=64,
        measure=replace(base.measure, name="quick", steps=5),
        env={"NCCL_P2P_DISABLE": "1", "HF_TOKEN": "hidden"},
        tracking=Tracking(mode=mode, **tracking),
    )
    return make_plan(spec, run_id=RUN_ID, created="2026-01-02T03:04:05", version="0.1", commit=COMMIT)


def run_info() -> RunInfo:
    return results.run_info(id=RUN_ID, model="mlp", started="2026-01-02T03:04:05", duration_s=12.5)


def point(world_size: int, *, exposed_transfer: Measured | None = None, **numbers: Any) -> Point:
    """A point that was measured: 20 ms of forward, and these numbers."""
    parts_ms = StepParts(forward=Measured(20.0), exposed_transfer=exposed_transfer)
    return Point(world_size=world_size, hosts=world_size, status="done", parts_ms=parts_ms, **numbers)


def analysis() -> Analysis:
    alone = point(1, step_ms=Measured(50.0, 49.0, 51.0, 9), efficiency=Measured(1.0))
    both = point(
        2,
        step_ms=Measured(80.0, 79.0, 81.0, 9),
        samples_per_s=Measured(800.0),
        efficiency=Measured(0.625, 0.61, 0.64, 9),
        arms_ms=ArmTimes(plain=Measured(80.0)),
        exposed_transfer=Measured(30.0, 29.0, 31.0, 9),
        comm=results.comm(
            1 << 20,
            buckets=(results.bucket(1 << 20, ready_ms=Measured(9.0), transfer_ms=Measured(30.0)),),
            busbw_gbit_s=Measured(0.19),
        ),
        loss=Loss(link_bandwidth=Measured(0.3, 0.28, 0.32, 9), unexplained=Measured(0.075)),
    )
    curve = tuple(
        CurvePoint(
            collective="all_reduce",
            bytes=b,
            time_us=Measured(9.0),
            algbw_gbit_s=Measured(0.1),
            busbw_gbit_s=w,
        )
        for b, w in ((1024, Measured(0.05)), (1 << 20, Measured(0.19)))
    )
    level = FabricLevel(
        name="all", world_size=2, alpha_us=None, busbw_gbit_s=None, nominal_gbit_s=0.19, curve=curve
    )
    verdict = Verdict(
        cause="link_bandwidth",
        world_size=2,
        share=Measured(0.3, 0.28, 0.32, 9),
        confidence="high",
        evidence=("30 ms exposed", "0.19 Gbit/s"),
        try_=(Remedy(overrides="ddp.comm_hook=fp16", code="", predicted_gain=Measured(1.2)),),
    )
    return results.bare(
        run_info(),
        alone,
        both,
        fabric=Fabric(levels=(level,)),
        verdicts=(verdict,),
        quality=Quality(
            contended_blocks=1, dropped_samples=0, clock_bound_us=None, warnings=("2 cores only",)
        ),
        trials=(TrialStatus(world_size=1, status="done"), TrialStatus(world_size=2, status="done")),
    )


def histories(steps: int = STEPS) -> tuple[StepHistory, ...]:
    def of(world_size: int) -> StepHistory:
        probe = [i % 2 == 1 for i in range(steps)]
        columns = {
            "time_s": tuple(0.05 * i for i in range(steps)),
            "step_ms": tuple(50.0 * world_size + i for i in range(steps)),
            "forward_ms": tuple(20.0 + i if p else None for i, p in enumerate(probe)),
            "gpu/sm_mhz": tuple(1400.0 if i else None for i in range(steps)),
        }
        arms = tuple("probe" if p else "plain" for p in probe)
        contended = tuple(i == 1 if i else None for i in range(steps))
        return StepHistory(world_size=world_size, columns=columns, arm=arms, contended=contended)

    return of(1), of(2)


def slower() -> Comparison:
    """The run is slower than what it is compared with."""
    point = PointComparison(
        world_size=2, ratio=Measured(0.8, 0.75, 0.85), distinguishable=True, causes={"compute": None}
    )
    info = run_info()
    return Comparison(schema=1, base=info, other=info, comparable=True, reasons=(), points=(point,))
