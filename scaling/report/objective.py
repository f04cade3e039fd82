"""The one figure that a sweep is told of a run."""

from __future__ import annotations

from scaling.analysis.results import Analysis, Inference, Measured, Training
from scaling.plan import Plan


def objective(analysis: Analysis, plan: Plan) -> Measured | None:
    """`tracking.objective` at the plan's largest world size; of cases, the fastest. None where it was not measured."""
    size = plan.ranks
    if plan.spec.by_case:
        rows: list[Inference | Training] = [*analysis.inference, *analysis.training]
        found = [row.samples_per_s for row in rows if row.world_size == size and row.samples_per_s]
        return max(found, key=lambda m: m.value, default=None)
    point = next((p for p in analysis.points if p.world_size == size), None)
    value: Measured | None = getattr(point, plan.spec.tracking.objective, None)
    return value
