"""Two runs side by side. They ran apart, so their intervals are combined, not paired."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scaling.analysis.change import Source
from scaling.analysis.cost import usd_per_million
from scaling.analysis.differing import differing
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    CaseComparison,
    Comparison,
    Cost,
    CostComparison,
    Inference,
    Loss,
    Measured,
    Point,
    PointComparison,
    Training,
)
from scaling.analysis.roofline import explain
from scaling.analysis.split import split
from scaling.analysis.stats import among, distinguishable, scaled
from scaling.plan import Plan
from scaling.spec import Spec

Gate = Literal["met", "not_met", "undecided", "unjudged", "unmeasured"]
Prices = tuple[float | None, float | None]
"""USD a GPU-hour, of the base and of the other."""

_SAME = ("model", "precision", "mode", "task", "synthetic")
_ALONE = ("model", "compile", "channels_last", "checkpointing", "fused_optimizer", "threads", "data")
"""Settings that act on a rank alone too: where they differ, what it takes is no measure of the machine."""
_OF_FABRICS = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "FI_")
"""Variables that do not."""


def compare(
    base: Analysis,
    other: Analysis,
    base_plan: Plan,
    other_plan: Plan,
    *,
    same_machine: bool = False,
    environments: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    prices: Prices = (None, None),
) -> Comparison:
    """`other` over `base` at every world size that both have.

    `environments`: env-0.json of each; `prices` where they are not those of the plans.

    Intervals cover what happens within a run. On the `same_machine` a rank alone that runs the same should take the
    same time in both: what it does not is drift between the runs, and no ratio within it is real.
    """
    same_machine = same_machine and _alone(base_plan.spec) == _alone(other_plan.spec)
    reasons = [
        f"{name} differs: {getattr(base.run, name)} and {getattr(other.run, name)}"
        for name in _SAME
        if getattr(base.run, name) != getattr(other.run, name)
        # Cases say their own precision, batch and accumulation steps, and only equal ones are compared.
        and not (name == "precision" and base_plan.spec.by_case)
    ]
    if base_plan.spec.model.args != other_plan.spec.model.args and base.run.model == other.run.model:
        reasons.append(
            f"the model's settings differ: {base_plan.spec.model.args} and {other_plan.spec.model.args}"
        )
    name = "global_batch" if base_plan.spec.mode == "strong" else "batch_per_rank"
    for key in () if base_plan.spec.by_case else (name, "accumulation_steps"):
        a, b = getattr(base_plan.spec, key), getattr(other_plan.spec, key)
        if a != b:
            reasons.append(f"{key} differs: {a} and {b}")
    if (base.trace is None) != (other.trace is None):
        reasons.append("one was made from profiler traces, the other was measured")
    others = {p.world_size: p for p in other.points}
    both = [(p, others[p.world_size]) for p in base.points if p.world_size in others]
    pairs = [(a, b) for a, b in both if a.step_ms or b.step_ms]
    plans = (base_plan, other_plan)
    known = [
        p.spec.cost.usd_per_gpu_hour if given is None else given
        for p, given in zip(plans, prices, strict=True)
    ]
    prices = (known[0], known[1])
    cases = _cases(base, other, prices)
    if not both and not cases:
        reasons.append(f"no {'case' if base_plan.spec.by_case else 'world size'} in common")
    return Comparison(
        schema=SCHEMA,
        base=base.run,
        other=other.run,
        comparable=not reasons,
        reasons=tuple(reasons),
        points=tuple(_point(a, b, prices, same_machine=same_machine) for a, b in pairs),
        roofline=explain(base.roofline, other.roofline),
        cases=cases,
        settings=differing(plans, environments),
    )


def with_split(comparison: Comparison, base: Sequence[Source], other: Sequence[Source]) -> Comparison:
    """The same with each ratio split into compute and fabric, at world sizes that both sources have.

    `base` and `other` are to be drawn with seeds of their own: the runs share no rounds.
    """
    if not comparison.comparable:
        return comparison
    first, second = ({s.world_size: s for s in sources} for sources in (base, other))
    points = tuple(
        dataclasses.replace(p, split=split(first[p.world_size], second[p.world_size], p.ratio))
        if p.ratio is not None and p.world_size in first.keys() & second.keys()
        else p
        for p in comparison.points
    )
    return dataclasses.replace(comparison, points=points)


def gate(comparisons: Sequence[Comparison], bar: float) -> Gate:
    """How every ratio of some comparisons stands to a bar, by its whole interval and what the machine itself moved.

    not_met: some ratio is below it; unmeasured: one of the runs did not measure all that the other did; unjudged:
    some ratio, or all, has no interval (too few rounds); undecided: some interval reaches below it.
    """
    ratios = [
        (p.ratio, abs(p.control.value - 1) if p.control else 0.0) for c in comparisons for p in c.points
    ]
    ratios += [(case.ratio, 0.0) for c in comparisons for case in c.cases]
    ends = [(r.low, r.high, moved) for r, moved in ratios if r is not None]
    known = [(low - moved, high + moved) for low, high, moved in ends if low is not None and high is not None]
    if any(high < bar for _, high in known):
        return "not_met"
    if len(ends) < len(ratios):
        return "unmeasured"
    if len(known) < len(ratios) or not known:
        return "unjudged"
    return "met" if all(low >= bar for low, _ in known) else "undecided"


def _cases(base: Analysis, other: Analysis, prices: Prices) -> tuple[CaseComparison, ...]:
    """Cases of both runs, measured in one of them at least."""
    rows: list[Inference | Training] = [*other.inference, *other.training]
    others = {_key(row): row for row in rows}
    rows = [*base.inference, *base.training]
    both = [(row, others[_key(row)]) for row in rows if _key(row) in others]
    pairs = [(a, b) for a, b in both if a.samples_per_s or b.samples_per_s]
    found = []
    for row, beside in pairs:
        ratio = _ratio(beside.samples_per_s, row.samples_per_s)
        found.append(
            CaseComparison(
                world_size=row.world_size,
                batch=row.batch,
                setting=_setting(row),
                samples_per_s=(row.samples_per_s, beside.samples_per_s),
                ratio=ratio,
                distinguishable=distinguishable(ratio and among(ratio, len(pairs))),
                usd_per_million_samples=tuple(
                    usd_per_million(one.samples_per_s, row.world_size, price)
                    for one, price in zip((row, beside), prices, strict=True)
                ),
            )
        )
    return tuple(found)


def _alone(spec: Spec) -> tuple[object, ...]:
    """What a rank alone runs."""
    env = {name: value for name, value in spec.env.items() if not name.startswith(_OF_FABRICS)}
    return (*(getattr(spec, name) for name in _ALONE), env)


def _key(row: Inference | Training) -> tuple[object, ...]:
    return (type(row), row.world_size, row.batch, *_setting(row).items())


def _setting(row: Inference | Training) -> dict[str, str | int | bool]:
    names = (
        ("precision", "autocast", "compile")
        if isinstance(row, Inference)
        else ("precision", "checkpointing", "accumulation_steps")
    )
    return {name: getattr(row, name) for name in names}


def _point(base: Point, other: Point, prices: Prices, *, same_machine: bool) -> PointComparison:
    ratio = _ratio(other.samples_per_s, base.samples_per_s)
    if base.samples_per_s is None and other.samples_per_s is None:
        ratio = _ratio(
            base.step_ms, other.step_ms
        )  # traces tell no batch: steps count, as if it were the same
    control = _ratio(base.arms_ms.bare_one, other.arms_ms.bare_one) if same_machine else None
    return PointComparison(
        world_size=base.world_size,
        ratio=ratio,
        distinguishable=distinguishable(ratio, floor=abs(control.value - 1) if control else 0.0),
        control=control,
        causes=_causes(base, other),
        cost=_cost(base, other, prices),
    )


def _cost(base: Point, other: Point, prices: Prices) -> CostComparison:
    costs = [
        Cost(
            usd_per_million_samples=usd_per_million(point.samples_per_s, point.world_size, price),
            power_w=point.cost.power_w,
            samples_per_joule=point.cost.samples_per_joule,
        )
        for point, price in zip((base, other), prices, strict=True)
    ]
    per_usd = None
    if prices[0] is not None and prices[1] is not None:
        per_usd = scaled(_ratio(other.samples_per_s, base.samples_per_s), prices[0] / prices[1])
    return CostComparison(
        base=costs[0],
        other=costs[1],
        per_usd=per_usd,
        per_joule=_ratio(costs[1].samples_per_joule, costs[0].samples_per_joule),
    )


def _causes(base: Point, other: Point) -> dict[str, Measured | None]:
    """Step time of `other` minus `base` by cause, ms: compute (a rank alone), and each cause of loss."""
    ideal = [
        # The step of a rank that loses nothing; over several ranks, what efficiency is over has lost something too.
        _product(p.efficiency, p.step_ms) if p.base_world_size == 1 else None
        for p in (base, other)
    ]
    causes = {"compute": _difference(ideal[1], ideal[0])}
    if base.loss is None or other.loss is None:
        return causes
    for field in dataclasses.fields(Loss):
        a = _product(getattr(base.loss, field.name), base.step_ms)
        b = _product(getattr(other.loss, field.name), other.step_ms)
        causes[field.name] = _difference(b, a)
    return causes


def _half(number: Measured) -> float | None:
    return number.half_width


def _ratio(top: Measured | None, bottom: Measured | None) -> Measured | None:
    """top / bottom; relative half-widths add in quadrature."""
    if top is None or bottom is None or not bottom.value:
        return None
    value, units = top.value / bottom.value, min(top.n, bottom.n)
    a, b = _half(top), _half(bottom)
    if a is None or b is None:
        return Measured(value=value, n=units)
    half = value * ((a / top.value) ** 2 + (b / bottom.value) ** 2) ** 0.5
    return Measured(value=value, low=value - half, high=value + half, n=units)


def _difference(a: Measured | None, b: Measured | None) -> Measured | None:
    """a - b; half-widths add in quadrature."""
    if a is None or b is None:
        return None
    value, units = a.value - b.value, min(a.n, b.n)
    half_a, half_b = _half(a), _half(b)
    if half_a is None or half_b is None:
        return Measured(value=value, n=units)
    half = (half_a**2 + half_b**2) ** 0.5
    return Measured(value=value, low=value - half, high=value + half, n=units)


def _product(share: Measured | None, step: Measured | None) -> Measured | None:
    """share * step; the share's interval is the one that matters."""
    if share is None or step is None:
        return None
    low = None if share.low is None else share.low * step.value
    high = None if share.high is None else share.high * step.value
    return Measured(value=share.value * step.value, low=low, high=high, n=share.n)
