"""Whether the verdicts on a run found the fault that was injected, and how all runs did together. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from scaling.analysis.results import NO_CAUSE, SCHEMA, Analysis, Measured, SelfTest, SelfTestCase, Straggler
from scaling.analysis.selftest.case import FaultCase
from scaling.spec.plan import Plan

ATTRIBUTION_BAR = 0.10
"""Largest accepted median of |attributed / expected - 1|."""


def grade(case: FaultCase, analysis: Analysis, plan: Plan) -> SelfTestCase:
    """One finished run against its case."""
    size = max(t.world_size for t in plan.trials)
    point = next(p for p in analysis.points if p.world_size == size)
    said = [v for v in analysis.verdicts if v.world_size == size]
    first = said[0].cause if said else "undecided"
    named = [v for v in said if v.cause not in (*NO_CAUSE, *case.accepted, *case.possible)]
    attributed = case.attributed_ms(point) if case.attributed_ms and point.loss else None
    error = None
    if case.expected_ms is not None and attributed is not None:
        error = attributed / case.expected_ms - 1
    found = analysis.quality.contended if case.contended else first in case.accepted
    return SelfTestCase(
        name=case.name,
        injected=" ".join(case.settings) or "nothing",
        accepted=case.accepted,
        first=first,
        hit=bool(found) and _right_rank(case, point.straggler),
        false_alarms=tuple(v.cause for v in named if v.confidence != "low"),
        sure_alarms=tuple(v.cause for v in named if v.confidence == "high"),
        contended=bool(analysis.quality.contended),
        expected_ms=case.expected_ms,
        attributed_ms=attributed,
        error=error,
        step_ms=point.step_ms or Measured(value=float("nan")),
    )


def _right_rank(case: FaultCase, late: Straggler | None) -> bool:
    """Whether the late rank, if there is to be one, is the one that was stalled, in its phase."""
    return case.rank is None or (late is not None and (late.rank, late.phase) == (case.rank, case.phase))


def summary(cases: Sequence[SelfTestCase], planned: int) -> SelfTest:
    """All cases together; a case that could not be run counts as missed, a false cause at high confidence double."""
    errors = [abs(c.error) for c in cases if c.error is not None]
    hits = sum(c.hit for c in cases)
    alarms = sum(len(c.false_alarms) + len(c.sure_alarms) for c in cases)
    median = statistics.median(errors) if errors else None
    return SelfTest(
        schema=SCHEMA,
        cases=tuple(cases),
        hit_rate=hits / planned if planned else 0.0,
        false_alarms=alarms,
        attribution_error=median,
        passed=hits == planned and not alarms and (median is None or median <= ATTRIBUTION_BAR),
    )
