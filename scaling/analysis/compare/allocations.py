"""How far allocations of the same settings are apart, and ratios that are decided against that. Pure.

Nodes of one partition differ, so a ratio of two runs holds for their nodes. With k runs of each side, each on nodes of
its own, at every world size

    ratio = exp(mean of ln(samples/s) of other  -  mean of ln(samples/s) of base)
    se^2  = v_base + v_other,    v = max(s^2, mean of e^2) / k

s is the standard deviation between a side's allocations, e the standard error within each. s contains e, but a few
allocations can agree by chance: hence the larger one. The interval is t x se with the degrees of freedom of the side
that has fewer allocations: it holds in 95 of 100 cases or more whatever the two spreads are (M. R. Mickey and M. B.
Brown, "Bounds on the distribution functions of the Behrens-Fisher statistic", Annals of Mathematical Statistics 37,
1966). Welch's own estimate of them holds in 90 with two allocations against eight.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from scaling.analysis.compare.differences import cases_of, settings_of
from scaling.analysis.compare.runs import drift
from scaling.analysis.compare.sweep import Member, grouped
from scaling.analysis.results import (
    Allocation,
    AllocationRates,
    Allocations,
    CaseComparison,
    Comparison,
    Measured,
    PointComparison,
    at,
)
from scaling.analysis.statistics.rounds import among, student

LEAST = 2
"""Fewer allocations of a side do not show how far its nodes are apart."""
_WHERE = ("cluster.sbatch.exclude", "cluster.sbatch.nodelist", "cluster.time")
"""Settings by which a run asks for other nodes of its partition, or for longer, and does the same work."""


def sides(runs: Sequence[Member]) -> list[list[int]]:
    """Numbers of the runs, those of equal settings on nodes of their own together, each in the order of the runs.

    A run that shares a node with an earlier one, or whose nodes are not known, is no further allocation: it stands by
    itself.
    """
    return grouped(
        runs,
        lambda run, side: _settings(run) == _settings(side[0]) and all(_apart(run, other) for other in side),
    )


def with_allocations(comparison: Comparison, base: Sequence[Member], other: Sequence[Member]) -> Comparison:
    """A comparison of the first run of each side, with its ratios those of all allocations of both.

    With fewer than LEAST of a side the ratios stay, and `allocations` says what they rest on. Costs and causes stay
    those of the first runs.
    """
    several = min(len(base), len(other)) >= LEAST
    if not comparison.comparable or comparison.one_run or not (several or _on_other_nodes(base[0], other[0])):
        return comparison
    first, second = (
        tuple(Allocation(run=run.analysis.run.id, nodes=run.nodes) for run in side) for side in (base, other)
    )
    comparison = dataclasses.replace(comparison, allocations=Allocations(base=first, other=second))
    if not several:
        return comparison
    return dataclasses.replace(
        comparison,
        points=tuple(_point(point, base, other, len(comparison.points)) for point in comparison.points),
        cases=tuple(_case(case, base, other, len(comparison.cases)) for case in comparison.cases),
    )


def across(base: Sequence[Measured], other: Sequence[Measured]) -> Measured | None:
    """`other` over `base`: rates of allocations, all above 0. None with fewer than LEAST of a side.

    `n` is the number of allocations of the side that has fewer.
    """
    if min(len(base), len(other)) < LEAST:
        return None
    (low, first), (high, second) = _mean(base), _mean(other)
    fewer = min(len(base), len(other))
    return Measured.around_log(math.exp(high - low), student(fewer - 1) * math.sqrt(first + second), fewer)


def _mean(rates: Sequence[Measured]) -> tuple[float, float]:
    """Mean of the logarithms, and its squared standard error."""
    logs = [math.log(rate.value) for rate in rates]
    within = statistics.fmean(_error(rate) ** 2 for rate in rates)
    return statistics.fmean(logs), max(statistics.variance(logs), within) / len(logs)


def _error(rate: Measured) -> float:
    """The standard error of a rate's logarithm, from its interval; 0 without one."""
    half = rate.log_half_width
    return half / student(rate.n - 1) if half and rate.n > 1 else 0.0


def _point(
    point: PointComparison, base: Sequence[Member], other: Sequence[Member], sizes: int
) -> PointComparison:
    first, second = (_rates(side, point.world_size) for side in (base, other))
    ratio = across(_known(first), _known(second))
    if ratio is None or point.ratio is None:
        return point
    per_usd = point.cost.per_usd
    priced = per_usd and ratio * (per_usd.value / point.ratio.value)
    return dataclasses.replace(
        point,
        ratio=ratio,
        distinguishable=among(ratio, sizes).differs_from(1, by=drift(point.control)),
        cost=dataclasses.replace(point.cost, per_usd=priced),
        allocations=AllocationRates(base=first, other=second),
    )


def _rates(side: Sequence[Member], world_size: int) -> tuple[Measured | None, ...]:
    points = (at(world_size, member.analysis.points) for member in side)
    return tuple(point.samples_per_s if point else None for point in points)


def _case(
    case: CaseComparison, base: Sequence[Member], other: Sequence[Member], cases: int
) -> CaseComparison:
    first, second = (
        [
            row.samples_per_s
            for member in side
            for row in cases_of(member.analysis)
            if (row.world_size, row.batch, row.setting) == (case.world_size, case.batch, case.setting)
        ]
        for side in (base, other)
    )
    ratio = across(_known(first), _known(second))
    if ratio is None or case.ratio is None:
        return case
    return dataclasses.replace(case, ratio=ratio, distinguishable=among(ratio, cases).differs_from(1))


def _known(rates: Sequence[Measured | None]) -> list[Measured]:
    return [rate for rate in rates if rate is not None and rate.value > 0]


def _settings(run: Member) -> dict[str, str]:
    return {key: value for key, value in settings_of(run.plan).items() if key not in _WHERE}


def _apart(run: Member, other: Member) -> bool:
    """Whether two runs are known to have no node in common, by the nodes' names and their devices' own ids."""
    located = run.nodes and other.nodes
    shared = {*run.nodes, *run.devices} & {*other.nodes, *other.devices}
    return bool(located) and not shared


def _on_other_nodes(base: Member, other: Member) -> bool:
    """Whether two runs of different settings are known to have run on different nodes of a Slurm cluster."""
    by_slurm = "slurm" in (base.plan.spec.launcher, other.plan.spec.launcher)
    located = base.nodes and other.nodes
    return (
        bool(located)
        and by_slurm
        and set(base.nodes) != set(other.nodes)
        and _settings(base) != _settings(other)
    )
