"""Several runs as one table: a row for each run, world size and case, named by the settings that differ. Pure.

Also how far allocations of the same settings are apart, and ratios that are decided against that. Nodes of one
partition differ, so a ratio of two runs holds for their nodes. With k runs of each side, each on nodes of its own, at
every world size

    ratio = exp(mean of ln(samples/s) of other  -  mean of ln(samples/s) of base)
    se^2  = v_base + v_other,    v = max(s^2, mean of e^2) / k

s is the standard deviation between a side's allocations, e the standard error within each. s contains e, but a few
allocations can agree by chance: hence the larger one. The interval is t x se with the degrees of freedom of the side
that has fewer allocations: it holds in 95 of 100 cases or more whatever the two spreads are (M. R. Mickey and M. B.
Brown, "Bounds on the distribution functions of the Behrens-Fisher statistic", Annals of Mathematical Statistics 37,
1966). Welch's own estimate of them holds in 90 with two allocations against eight.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scaling.analysis.compare.differences import Case, cases_of, settings_of, telling
from scaling.analysis.compare.runs import alone, drift, unlike
from scaling.analysis.results import (
    Allocation,
    AllocationRates,
    Allocations,
    Analysis,
    CaseComparison,
    Comparison,
    Measured,
    Point,
    PointComparison,
    Sweep,
    SweepBest,
    SweepRow,
    Verdict,
    at,
    ratio_of,
)
from scaling.analysis.statistics.rounds import among, student
from scaling.settings.plan import Plan
from scaling.settings.run import Spec
from scaling.units import hostlist

BY_VALUE = ("model", "topology", "precision", "task", "mode")
"""Settings whose value says what it is."""
UNSET = "unset"
NODES = "nodes"
"""The column that names the nodes of runs that differ in nothing else."""
BATCH = "batch"
OPEN = ("undecided", "scales_well")
"""Verdicts that name no cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One run of a sweep. `machine`: equal for runs that used the same machine; None where it is not known."""

    analysis: Analysis
    plan: Plan
    machine: Hashable = None
    nodes: tuple[str, ...] = ()
    """Names of the hosts that its ranks ran on; empty where they are not known."""
    devices: tuple[str, ...] = ()
    """Ids that the hardware itself has, of every device of its ranks."""


def sweep(runs: Sequence[Member]) -> Sweep:
    """All runs as one table, which row is best, and which ranks are slower than one."""
    settings = [settings_of(run.plan) for run in runs]
    keys = telling(settings)
    chosen = [{key: options.get(key, UNSET) for key in keys} for options in settings]
    if _same_on_other_nodes(runs, chosen):
        keys = (*keys, NODES)
        chosen = [{**options, NODES: hostlist(run.nodes)} for options, run in zip(chosen, runs, strict=True)]
    names = _names(chosen, [run.analysis.run.id for run in runs])
    rows = [row for k, run in enumerate(runs) for row in _rows(k, run, chosen[k])]
    more = [key for key in dict.fromkeys(k for row in rows for k in row.settings) if key not in keys]
    more = [key for key in more if len({row.settings.get(key, UNSET) for row in rows}) > 1]
    shown = (*keys, *more)
    every = [{k: row.settings.get(k, UNSET) for k in shown} for row in rows]
    rows = [replace(row, settings=each, name=_name(each)) for row, each in zip(rows, every, strict=True)]
    return Sweep(
        names=names,
        keys=shown,
        rows=tuple(rows),
        best=tuple(_best(runs, rows)),
        contended=tuple(
            f"{name}: {note}"
            for name, run in zip(names, runs, strict=True)
            for note in run.analysis.quality.contended
        ),
    )


def alike(runs: Sequence[Member]) -> list[list[int]]:
    """Numbers of the runs that did equal work, in groups, each in the order of the runs."""

    def same(run: Member, members: list[Member]) -> bool:
        return not any(unlike(members[0].analysis, run.analysis, members[0].plan, run.plan))

    return grouped(runs, same)


def grouped(runs: Sequence[Member], joins: Callable[[Member, list[Member]], bool]) -> list[list[int]]:
    """Numbers of the runs, in groups; a run is in the first one whose members it `joins`."""
    groups: list[list[int]] = []
    for k, run in enumerate(runs):
        home = next((group for group in groups if joins(run, [runs[member] for member in group])), None)
        groups += [] if home else [[]]
        (home or groups[-1]).append(k)
    return groups


def _same_on_other_nodes(runs: Sequence[Member], chosen: Sequence[Mapping[str, str]]) -> bool:
    """Whether some runs of the same settings ran on different nodes."""
    alike: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for run, options in zip(runs, chosen, strict=True):
        alike.setdefault(tuple(options.values()), set()).add(run.nodes)
    return any(len(nodes) > 1 for nodes in alike.values())


def _names(settings: Sequence[Mapping[str, str]], ids: Sequence[str]) -> tuple[str, ...]:
    names = [_name(options) for options in settings]
    named = zip(names, ids, strict=True)
    return tuple(f"{name} {id_}".strip() if names.count(name) > 1 else name for name, id_ in named)


def _name(settings: Mapping[str, str]) -> str:
    return ", ".join(value if key in BY_VALUE else f"{key}={value}" for key, value in settings.items())


def _rows(number: int, run: Member, settings: Mapping[str, str]) -> Iterator[SweepRow]:
    spec = run.plan.spec
    base = at(1, run.analysis.points)
    for point in run.analysis.points:
        several = point.world_size > 1 == point.base_world_size
        faster = ratio_of(point.samples_per_s, base.samples_per_s) if base else point.speedup
        named = _cause(point, run.analysis.verdicts)
        yield SweepRow(
            run=number,
            world_size=point.world_size,
            settings=dict(settings),
            batch=spec.batch_at(point.world_size) or None,
            status=point.status,
            samples_per_s=point.samples_per_s,
            speedup=faster if several else None,
            efficiency=point.efficiency,
            cause=named.cause if named else None,
            share=named.share if named else None,
            confidence=named.confidence if named else None,
        )
    for case in cases_of(run.analysis):
        yield _case_row(number, case, settings)


def _case_row(number: int, case: Case, settings: Mapping[str, str]) -> SweepRow:
    of_case = {name: str(value).lower() for name, value in case.setting.items()}
    n = case.world_size
    return SweepRow(
        run=number,
        world_size=n,
        settings={**of_case, **settings, BATCH: str(case.batch)},
        batch=case.batch,
        status=case.status,
        samples_per_s=case.samples_per_s,
        speedup=case.efficiency * n if case.efficiency and n > 1 else None,
        efficiency=case.efficiency,
    )


def _cause(point: Point, verdicts: Sequence[Verdict]) -> Verdict | None:
    """The heaviest verdict of a world size that names a cause with its share; they are sorted by weight."""
    here = [v for v in verdicts if v.world_size == point.world_size and v.share and v.cause not in OPEN]
    return next((v for v in here if v.cause != "slow_path"), None)


def _best(runs: Sequence[Member], rows: Sequence[SweepRow]) -> Iterator[SweepBest]:
    """The best row of each kind of sample that several rows measured."""
    kinds: dict[Hashable, dict[int, Measured]] = {}
    for k, row in enumerate(rows):
        if row.samples_per_s is not None:
            kinds.setdefault(_kind(runs[row.run]), {})[k] = row.samples_per_s
    for rates in kinds.values():
        if len(rates) > 1:
            best = max(rates, key=lambda k: rates[k].value)
            ratios = {k: among(rate / rates[best], len(rates) - 1) for k, rate in rates.items() if k != best}
            rivals = tuple(k for k in ratios if not _below(runs, rows[k], rows[best], ratios[k]))
            yield SweepBest(row=best, rivals=rivals)


def _kind(run: Member) -> Hashable:
    """What a sample of a run is: samples of different models or tasks are not the same amount of work."""
    model = run.plan.spec.model
    args = json.dumps(model.args, sort_keys=True, default=str)
    return model.name, args, run.analysis.run.task, model.synthetic, run.analysis.run.simulated


def _below(runs: Sequence[Member], row: SweepRow, best: SweepRow, ratio: Measured) -> bool:
    """Whether a row surely has the lower throughput (`ratio`), by more than the machine may have drifted."""
    run, other = runs[row.run], runs[best.run]
    by = 0.0
    if row.run != best.run and run.machine is not None and run.machine == other.machine:
        by = _moved(run, row.world_size, other, best.world_size)
    return ratio.widened(by).surely_below(1.0)


def _moved(run: Member, size: int, other: Member, other_size: int) -> float:
    """How much a rank's step alone changed between two runs in which it is the same; 0 where that is not known."""
    a, b = at(size, run.analysis.points), at(other_size, other.analysis.points)
    same = _step_alone(run.plan.spec, size) == _step_alone(other.plan.spec, other_size)
    return drift(ratio_of(a.arms_ms.bare_one, b.arms_ms.bare_one)) if a and b and same else 0.0


def _step_alone(spec: Spec, world_size: int) -> tuple[object, ...]:
    return (*alone(spec), spec.precision, spec.batch_at(world_size), spec.accumulation_steps)


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
    comparison = replace(comparison, allocations=Allocations(base=first, other=second))
    if not several:
        return comparison
    return replace(
        comparison,
        points=tuple(_point(point, base, other, len(comparison.points)) for point in comparison.points),
        cases=tuple(_case(case, base, other, len(comparison.cases)) for case in comparison.cases),
    )


def across(base: Sequence[Measured | None], other: Sequence[Measured | None]) -> Measured | None:
    """`other` over `base`: rates of allocations, of those that are known. None with fewer than LEAST of a side.

    `n` is the number of allocations of the side that has fewer.
    """
    rates = [[rate for rate in side if rate is not None and rate.value > 0] for side in (base, other)]
    fewer = min(map(len, rates))
    if fewer < LEAST:
        return None
    (low, first), (high, second) = map(_mean, rates)
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
    ratio = across(first, second)
    if ratio is None or point.ratio is None:
        return point
    per_usd = point.cost.per_usd
    priced = per_usd and ratio * (per_usd.value / point.ratio.value)
    return replace(
        point,
        ratio=ratio,
        distinguishable=among(ratio, sizes).differs_from(1, by=drift(point.control)),
        cost=replace(point.cost, per_usd=priced),
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
    ratio = across(first, second)
    if ratio is None or case.ratio is None:
        return case
    return replace(case, ratio=ratio, distinguishable=among(ratio, cases).differs_from(1))


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
    elsewhere = bool(located) and by_slurm and set(base.nodes) != set(other.nodes)
    return elsewhere and _settings(base) != _settings(other)
