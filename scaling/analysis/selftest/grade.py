"""Whether the verdicts on a run found the fault that was injected, and how all runs did together. Pure.

A fault that is injected on purpose, and what the verdicts have to say about it. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scaling.analysis.results import (
    NO_CAUSE,
    SCHEMA,
    Analysis,
    Measured,
    Point,
    SelfTest,
    SelfTestCase,
    Straggler,
)
from scaling.settings.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """One injected fault and the verdicts that are accepted for it."""

    name: str
    overrides: tuple[str, ...]
    """Of the run, with the fault; where a key stands twice the later one counts."""
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
    phase: str = ""
    """Phase of the straggler."""
    contended: bool = False
    """The run has to warn of contention; causes may then have low confidence only."""

    @property
    def settings(self) -> list[str]:
        """Overrides for `scaling run`, each key once."""
        return list({text.split("=", 1)[0]: text for text in self.overrides}.values())


def loss_ms(*causes: str) -> Callable[[Point], float | None]:
    """Reads what the waterfall has for some causes together, ms."""

    def found(point: Point) -> float | None:
        shares = [getattr(point.loss, cause) for cause in causes]
        known = [share.value for share in shares if share is not None]
        return sum(known) * point.step_ms.value if known and point.step_ms else None

    return found


def straggler_ms(point: Point) -> float | None:
    """What the late rank costs a step, ms."""
    return point.straggler.cost_ms.value if point.straggler else None


INJECTS = {"forward": "compute"}
"""Phase of a step -> the override `inject.NAME_ms` that stalls it, where their names differ."""


def stalled(phase: str, stall_ms: float, rank: int | None = None) -> Iterable[str]:
    """Overrides that stall a phase, on one rank or on all."""
    if rank is not None:
        yield f"inject.rank={rank}"
    yield f"inject.{INJECTS.get(phase, phase)}_ms={stall_ms:g}"


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
