"""Faults that are injected on purpose, and whether the verdicts find them. Pure; `scaling selftest` runs the cases.

Each case states which causes are accepted as the first, which others the arithmetic allows, and what the fault adds to
a step. Every other named cause is a false alarm.

All cases are two emulated hosts with synthetic compute (sleeps of a known length) and gradients in
one bucket, so nothing of a transfer is hidden and the arithmetic is exact:

- a stall of d ms on every rank, or on one of them (in every bucket's way), costs d;
- an all-reduce of m bytes over n ranks takes 2 (n-1)/n m / rate, the rate being what TCP's users get
  of the link; without no_sync it happens once a micro-step;
- on the controls' link that is some 0.7 ms, and latency about as much again: each less than half of the 3 % of a
  step that a verdict is made of.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scaling.analysis.results import (
    NO_CAUSE,
    SCHEMA,
    Analysis,
    Measured,
    Point,
    SelfTest,
    SelfTestCase,
    Verdict,
)
from scaling.spec.plan import Plan
from scaling.spec.topology import TCP_PAYLOAD_SHARE

ATTRIBUTION_BAR = 0.10
"""Largest accepted median of |attributed / expected - 1|."""

_BASE = (
    "world_sizes=[2]",
    "topology=emulated_pcie",
    "topology.link.rate=3200mbit",
    "model=synthetic",
    "model.compute_ms=40",
    "model.layers=8",
    "model.param_mb=0.25",
    "measure=quick",
    "measure.steps=4",
    "measure.rounds_min=4",
    "measure.rounds_max=4",
    "measure.budget_s=40",
    "measure.fabric_max=4MiB",
    "tracking=disabled",
)
_MB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """One injected fault and the verdicts that are accepted for it."""

    name: str
    overrides: tuple[str, ...]
    accepted: tuple[str, ...]
    """One of these causes has to be the first verdict."""
    possible: tuple[str, ...] = ()
    """Other causes that may be named too."""
    expected_ms: float | None = None
    """What the fault adds to a step."""
    attributed_ms: Callable[[Point], float | None] | None = None
    """Reads from the point what the analysis attributes to the fault."""
    rank: int | None = None
    """Rank of the straggler."""
    contended: bool = False
    """The run has to warn of contention; causes may then have low confidence only."""
    full: bool = False
    """Only with --full."""


def overrides(case: FaultCase) -> list[str]:
    """Overrides for `scaling run`; a case's own ones replace the common ones."""
    keys = {text.split("=", 1)[0]: text for text in (*_BASE, *case.overrides)}
    return list(keys.values())


def _loss_ms(*causes: str) -> Callable[[Point], float | None]:
    def found(point: Point) -> float | None:
        shares = [getattr(point.loss, cause) for cause in causes]
        known = [share.value for share in shares if share is not None]
        return sum(known) * point.step_ms.value if known and point.step_ms else None

    return found


def _straggler_ms(point: Point) -> float | None:
    return point.straggler.cost_ms.value if point.straggler else None


def _transfer_ms(param_mb: float, rate_mbit: float, times: int = 1) -> float:
    """An all-reduce over two ranks."""
    return times * param_mb * _MB * 8e3 / (rate_mbit * 1e6 * TCP_PAYLOAD_SHARE)


def _straggler(rank: int, phase: str, stall_ms: float, *, full: bool = False) -> FaultCase:
    return FaultCase(
        name=f"rank {rank} late in {phase}",
        overrides=(f"inject.rank={rank}", f"inject.{phase}_ms={stall_ms:g}"),
        accepted=("straggler",),
        expected_ms=stall_ms,
        attributed_ms=_straggler_ms,
        rank=rank,
        full=full,
    )


def _stall(phase: str, stall_ms: float) -> FaultCase:
    """Every rank is late in one phase."""
    return FaultCase(
        name=f"{phase} stall",
        overrides=(f"inject.{phase}_ms={stall_ms:g}",),
        accepted=(phase,),
        expected_ms=stall_ms,
        attributed_ms=_loss_ms(phase),
    )


_LINK = ("link_bandwidth", "link_latency")
_ONE_BUCKET = "ddp.bucket_cap_mb=64"
CASES: tuple[FaultCase, ...] = (
    FaultCase(name="control, two hosts", overrides=("model.compute_ms=70",), accepted=NO_CAUSE),
    FaultCase(
        name="control, longer steps",
        overrides=("model.compute_ms=90", "model.layers=16"),
        accepted=NO_CAUSE,
    ),
    _straggler(0, "compute", 25),
    _straggler(1, "compute", 25),
    _straggler(1, "input", 25, full=True),
    _straggler(0, "input", 25, full=True),
    FaultCase(
        name="slow link",
        overrides=("topology.link.rate=500mbit", "model.param_mb=4", _ONE_BUCKET),
        accepted=("link_bandwidth",),
        possible=("link_latency",),
        expected_ms=_transfer_ms(4, 500),
        attributed_ms=_loss_ms(*_LINK),
    ),
    FaultCase(
        name="one host's link at a tenth",
        overrides=(
            "topology.link.rate=1gbit",
            "model.param_mb=1",
            _ONE_BUCKET,
            "inject.rank=1",
            "inject.link_rate=100mbit",
        ),
        accepted=("slow_path",),
        possible=_LINK,
        expected_ms=_transfer_ms(1, 100),
        attributed_ms=_loss_ms(*_LINK),
        full=True,
    ),
    FaultCase(
        name="tiny buckets",
        overrides=("model.param_mb=0.5", "model.layers=64", "model.compute_ms=10", "ddp.bucket_cap_mb=0.001"),
        accepted=("link_latency",),
        possible=("strategy_overhead", "overlap", "host", "link_bandwidth", "straggler", "neighbours"),
    ),
    FaultCase(
        name="no_sync left out",
        overrides=(
            "topology.link.rate=1gbit",
            "model.param_mb=2",
            _ONE_BUCKET,
            "accumulation_steps=4",
            "inject.wrong_no_sync=true",
        ),
        accepted=("link_bandwidth",),
        possible=("link_latency",),
        expected_ms=_transfer_ms(2, 1000, times=4),
        attributed_ms=_loss_ms(*_LINK),
    ),
    _stall("input", 25),
    _stall("host", 25),
    FaultCase(
        name="busy processes",
        overrides=("inject.contention=2", "measure.rounds_min=3", "measure.budget_s=14"),
        accepted=NO_CAUSE,
        contended=True,
    ),
)
"""All cases of the self-test."""


def grade(case: FaultCase, analysis: Analysis, plan: Plan) -> SelfTestCase:
    """One finished run against its case."""
    size = max(t.world_size for t in plan.trials)
    point = next(p for p in analysis.points if p.world_size == size)
    said = [v for v in analysis.verdicts if v.world_size == size]
    first = said[0].cause if said else "undecided"
    named = _named(said)
    late = point.straggler
    right_rank = case.rank is None or (late is not None and late.rank == case.rank)
    attributed = case.attributed_ms(point) if case.attributed_ms and point.loss else None
    error = None
    if case.expected_ms is not None and attributed is not None:
        error = attributed / case.expected_ms - 1
    return SelfTestCase(
        name=case.name,
        injected=" ".join(case.overrides) or "nothing",
        accepted=case.accepted,
        first=first,
        hit=right_rank and (_said_so(analysis) if case.contended else first in case.accepted),
        false_alarms=tuple(c for c in named if c not in (*case.accepted, *case.possible)),
        expected_ms=case.expected_ms,
        attributed_ms=attributed,
        error=error,
        step_ms=point.step_ms or Measured(value=float("nan")),
    )


def _said_so(analysis: Analysis) -> bool:
    return bool(analysis.quality.contended)


def _named(said: Sequence[Verdict]) -> list[str]:
    """Causes with more than low confidence."""
    return [v.cause for v in said if v.cause not in NO_CAUSE and v.confidence != "low"]


def summary(cases: Sequence[SelfTestCase], planned: int) -> SelfTest:
    """All cases together; a case that could not be run counts as missed."""
    errors = [abs(c.error) for c in cases if c.error is not None]
    hits = sum(c.hit for c in cases)
    alarms = sum(len(c.false_alarms) for c in cases)
    median = statistics.median(errors) if errors else None
    return SelfTest(
        schema=SCHEMA,
        cases=tuple(cases),
        hit_rate=hits / planned if planned else 0.0,
        false_alarms=alarms,
        attribution_error=median,
        passed=hits == planned and not alarms and (median is None or median <= ATTRIBUTION_BAR),
    )
