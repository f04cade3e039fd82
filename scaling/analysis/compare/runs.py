"""Compare two runs. They ran at different times, so their intervals are combined as independent, not paired.

Split a throughput ratio into a factor of the devices and a factor of the links. Pure.

Each run is put through the simulation (scaling/analysis/predict/whatif.py) with the other's links, and with
compute as many times as fast as the other's. Either change can be made first, from either run, so

    fabric  = sqrt( T_base / T_base(other's links)   x  T_other(base's links)   / T_other )
    compute = sqrt( T_base / T_base(other's compute) x  T_other(base's compute) / T_other )
    left    = (T_base / T_other) / (compute x fabric)

which is the same whichever run is called the base (the two-sided mean of L. S. Shapley, "A value for
n-person games", 1953, over logarithms). Faster compute hides less of the transfer: this counts as
compute here, while a difference of two waterfalls would attribute it to the link. `left` is what neither
explains: late ranks, neighbours, DDP's own cost, input, and the model's error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal

import numpy as np

from scaling.analysis.compare.differences import Prices, cases_of, compared, differing, key_of, shared
from scaling.analysis.decompose.loss import usd_per_million
from scaling.analysis.decompose.roofline import explain
from scaling.analysis.predict.change import Change, Source
from scaling.analysis.predict.predictions import predict
from scaling.analysis.predict.whatif import OWN_WORK
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Comparison,
    CostComparison,
    Loss,
    Measured,
    Point,
    PointComparison,
    SampleCost,
    Split,
    ratio_of,
)
from scaling.analysis.statistics.rounds import Floats, among, interval
from scaling.settings.environment import FABRIC
from scaling.settings.plan import Plan
from scaling.settings.run import Spec


def split(base: Source, other: Source, ratio: Measured) -> Split:
    """`ratio`: throughput of `other` over `base` at their world size, with the same batch.

    The two sources must be resampled with different seeds.
    """
    faster = _alone(base) / _alone(other)
    fewer = min(base, other, key=lambda source: source.units - source.groups)
    alone = interval(float(faster[0]), faster[1:], fewer.units, groups=fewer.groups, positive=True)
    fabric = _between(_gain(base, Change(fabric=(other.link,))), _gain(other, Change(fabric=(base.link,))))
    compute = _between(
        _gain(base, Change(compute_scale=alone.value)),
        _gain(other, Change(compute_scale=1 / alone.value)),
        also=alone.log_half_width,
    )
    left = ratio.value / (compute.value * fabric.value)
    half = _quadrature([x.log_half_width for x in (ratio, compute, fabric)])
    return Split(compute=compute, fabric=fabric, left=Measured.around_log(left, half, ratio.n), alone=alone)


def _alone(source: Source) -> Floats:
    """Compute time of one rank alone in a step, ns, S."""
    total: Floats = np.sum([source.alone[phase] for phase in OWN_WORK], axis=0)
    return total


def _gain(source: Source, change: Change) -> Measured:
    return predict(source, change)["gain"]


def _between(forth: Measured, back: Measured, also: float | None = 0.0) -> Measured:
    """sqrt(forth / back), `back` being the gain of the way back.

    Both rest on the same two runs, so their errors (of logarithms) are added and not taken in quadrature.
    """
    first, second = forth.log_half_width, back.log_half_width
    both = None if first is None or second is None else (first + second) / 2
    ratio = math.sqrt(forth.value / back.value)
    return Measured.around_log(ratio, _quadrature([both, also]), min(forth.n, back.n))


def _quadrature(spreads: Sequence[float | None]) -> float | None:
    given = [s for s in spreads if s is not None]
    return math.hypot(*given) if len(given) == len(spreads) else None


Gate = Literal["met", "not_met", "undecided", "unjudged", "unmeasured", "batch_unknown"]

_SAME = ("model", "precision", "mode", "task", "synthetic", "simulated")
_ALONE = ("model", "compile", "channels_last", "checkpointing", "fused_optimizer", "threads", "data")
"""Settings that change a single rank's step; where they differ, that step does not show the machine's drift."""


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

    Intervals cover variation within a run. On the `same_machine`, one rank alone should take the same time in both;
    any difference is drift of the machine, and ratios within it are not distinguishable from 1.
    """
    reasons = tuple(unlike(base, other, base_plan, other_plan))
    same_machine = same_machine and not reasons and alone(base_plan.spec) == alone(other_plan.spec)
    others = {p.world_size: p for p in other.points}
    theirs = {key_of(case) for case in cases_of(other)}
    only_base = {p.world_size for p in base.points if p.step_ms and p.world_size not in others}
    only_base |= {c.world_size for c in cases_of(base) if c.samples_per_s and key_of(c) not in theirs}
    both = ((p, others[p.world_size]) for p in base.points if p.world_size in others)
    pairs = [(a, b) for a, b in both if a.step_ms or b.step_ms]
    plans = (base_plan, other_plan)
    prices = (
        base_plan.spec.cost.usd_per_gpu_hour if prices[0] is None else prices[0],
        other_plan.spec.cost.usd_per_gpu_hour if prices[1] is None else prices[1],
    )
    comparison = Comparison(
        schema=SCHEMA,
        base=base.run,
        other=other.run,
        comparable=not reasons,
        reasons=reasons,
        points=tuple(_point(a, b, prices, len(pairs), same_machine=same_machine) for a, b in pairs),
        roofline=explain(base.roofline, other.roofline),
        cases=tuple(compared(base, other, prices)),
        settings=differing(plans, environments),
        contended=tuple(
            f"{role}: {note}"
            for role, run in (("base", base), ("other", other))
            for note in run.quality.contended
        ),
        batch_unknown=any(a.samples_per_s is None and b.samples_per_s is None for a, b in pairs),
        only_base=tuple(sorted(only_base)),
    )
    return _of_one_run(comparison) if base == other and base_plan == other_plan else comparison


def _of_one_run(comparison: Comparison) -> Comparison:
    """A run beside itself: its ratios are 1 by definition, whatever its own intervals are."""

    def unity(ratio: Measured | None) -> Measured | None:
        return ratio and Measured(1.0, 1.0, 1.0, ratio.n)

    points = tuple(
        replace(p, ratio=unity(p.ratio), control=unity(p.control), causes={}) for p in comparison.points
    )
    cases = tuple(replace(case, ratio=unity(case.ratio)) for case in comparison.cases)
    return replace(comparison, points=points, cases=cases, one_run=True)


def unlike(base: Analysis, other: Analysis, base_plan: Plan, other_plan: Plan) -> Iterator[str]:
    """Why two runs did not do equal work, so that a ratio of the two says nothing; empty where they did."""
    spec, beside, by_cases = base_plan.spec, other_plan.spec, base_plan.spec.kind.by_cases
    # Cases state their own precision, batch and accumulation steps, and only equal cases are compared.
    for name in _SAME:
        a, b = getattr(base.run, name), getattr(other.run, name)
        if a != b and not (name == "precision" and by_cases):
            yield f"{name} differs: {a} and {b}"
    if spec.model.args != beside.model.args and base.run.model == other.run.model:
        yield f"the model's settings differ: {spec.model.args} and {beside.model.args}"
    batch_key, _ = spec.batch_setting
    for key in () if by_cases else (batch_key, "accumulation_steps"):
        a, b = getattr(spec, key), getattr(beside, key)
        if a != b:
            yield f"{key} differs: {a} and {b}"
    if (base.trace is None) != (other.trace is None):
        yield "one was made from profiler traces, the other was measured"
    common = {p.world_size for p in base.points} & {p.world_size for p in other.points}
    if not common and not shared(base, other):
        studied = base_plan.kind.followed and other_plan.kind.followed
        hint = ": `scaling study` makes a scaling study of such runs" if studied else ""
        yield f"no {'case' if by_cases else 'world size'} in common{hint}"


def with_split(comparison: Comparison, base: Sequence[Source], other: Sequence[Source]) -> Comparison:
    """The comparison with each ratio split into compute and fabric, at world sizes that both sources have.

    `base` and `other` must be resampled with different seeds, since the runs share no rounds.
    """
    if not comparison.comparable or comparison.one_run:
        return comparison
    first, second = ({s.world_size: s for s in sources} for sources in (base, other))
    points = tuple(
        replace(p, split=split(first[p.world_size], second[p.world_size], p.ratio))
        if p.ratio is not None and p.world_size in first.keys() & second.keys()
        else p
        for p in comparison.points
    )
    return replace(comparison, points=points)


def gate(comparisons: Sequence[Comparison], bar: float) -> Gate:
    """How all ratios of some comparisons stand to a bar, by their whole intervals and the machine's drift.

    batch_unknown: the samples of a step are not known, so there is no throughput; not_met: some ratio is below it;
    unmeasured: one of the runs did not measure all that the base did; unjudged: some ratio, or all, has no interval
    (too few rounds); undecided: some interval reaches below it, or tells nothing.
    """
    if any(c.batch_unknown for c in comparisons):
        return "batch_unknown"
    ratios = [(p.ratio, drift(p.control)) for c in comparisons for p in c.points]
    ratios += [(case.ratio, 0.0) for c in comparisons for case in c.cases]
    measured = [ratio.widened(moved) for ratio, moved in ratios if ratio is not None]
    if any(ratio.surely_below(bar) for ratio in measured):
        return "not_met"
    if len(measured) < len(ratios) or any(c.only_base for c in comparisons):
        return "unmeasured"
    if not measured or any(ratio.interval is None for ratio in measured):
        return "unjudged"
    return "met" if all(ratio.tells and ratio.least >= bar for ratio in measured) else "undecided"


def alone(spec: Spec) -> tuple[object, ...]:
    """Settings that decide the step of one rank alone."""
    env = {name: value for name, value in spec.env.items() if not name.startswith(FABRIC)}
    return (*(getattr(spec, name) for name in _ALONE), env)


def _point(base: Point, other: Point, prices: Prices, sizes: int, *, same_machine: bool) -> PointComparison:
    """Both runs at one of the `sizes` world sizes that they have in common."""
    ratio = ratio_of(other.samples_per_s, base.samples_per_s)
    if base.samples_per_s is None and other.samples_per_s is None:
        # Traces do not state the batch; assume it is the same and compare steps.
        ratio = ratio_of(base.step_ms, other.step_ms)
    control = ratio_of(base.arms_ms.bare_one, other.arms_ms.bare_one) if same_machine else None
    return PointComparison(
        world_size=base.world_size,
        ratio=ratio,
        distinguishable=ratio is not None and among(ratio, sizes).differs_from(1, by=drift(control)),
        control=control,
        causes=_causes(base, other),
        cost=_cost(base, other, prices),
    )


def drift(control: Measured | None) -> float:
    """The most that the machine itself may have changed between two runs, as a fraction; 0 where it is not known."""
    return control.departure(1.0) if control else 0.0


def _cost(base: Point, other: Point, prices: Prices) -> CostComparison:
    costs = [
        SampleCost(
            usd_per_million_samples=usd_per_million(point.samples_per_s, point.world_size, price),
            power_w=point.cost.power_w,
            samples_per_joule=point.cost.samples_per_joule,
        )
        for point, price in zip((base, other), prices, strict=True)
    ]
    per_usd = None
    if prices[0] is not None and prices[1] is not None:
        faster = ratio_of(other.samples_per_s, base.samples_per_s)
        per_usd = faster and faster * (prices[0] / prices[1])
    return CostComparison(
        base=costs[0],
        other=costs[1],
        per_usd=per_usd,
        per_joule=ratio_of(costs[1].samples_per_joule, costs[0].samples_per_joule),
    )


def _causes(base: Point, other: Point) -> dict[str, Measured | None]:
    """Step time of `other` minus `base` by cause, ms: compute (a rank alone), and each cause of loss."""
    # The step without any loss. A base of several ranks has losses itself, so there is none then.
    ideal = [_product(p.efficiency, p.step_ms) if p.base_world_size == 1 else None for p in (base, other)]
    causes = {"compute": _difference(ideal[1], ideal[0])}
    if base.loss is None or other.loss is None:
        return causes
    for field in fields(Loss):
        a = _product(getattr(base.loss, field.name), base.step_ms)
        b = _product(getattr(other.loss, field.name), other.step_ms)
        causes[field.name] = _difference(b, a)
    return causes


def _difference(a: Measured | None, b: Measured | None) -> Measured | None:
    """a - b; None where either is not known."""
    return a - b if a and b else None


def _product(share: Measured | None, step: Measured | None) -> Measured | None:
    """share x step with the share's interval: the step's own is far narrower."""
    return share * step.value if share and step else None
