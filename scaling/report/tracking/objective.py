"""The one number that a sweep gets from a run."""

from __future__ import annotations

from scaling.analysis.results import Analysis, InferenceCase, Measured, TrainingCase, at
from scaling.spec.plan import Plan


def objective(analysis: Analysis, plan: Plan) -> Measured | None:
    """`tracking.objective` at the plan's largest world size, or the fastest case's throughput; None if not measured."""
    size = plan.ranks
    if plan.spec.by_case:
        rows: list[InferenceCase | TrainingCase] = [*analysis.inference, *analysis.training]
        found = [row.samples_per_s for row in rows if row.world_size == size and row.samples_per_s]
        return max(found, key=lambda m: m.value, default=None)
    value: Measured | None = getattr(at(size, analysis.points), plan.spec.tracking.objective, None)
    return value
