"""Strategies measured side by side: each one's own analysis, and their throughputs against the first one's.

Blocks without a strategy (bare_one, bare_all, the size sweep) are shared. A ratio is of plain steps of the same rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import polars as pl

from scaling.analysis.about import Ending
from scaling.analysis.analyze import analyze
from scaling.analysis.decompose.trials import read_trial
from scaling.analysis.results import Analysis, Degrees, PeakMemory, Point, StrategyAtSize, StrategyResult
from scaling.analysis.statistics.rounds import Rounds
from scaling.records.frames import in_memory, joined
from scaling.records.tables import Tables
from scaling.spec.plan import Plan
from scaling.spec.schedule import OF_NONE, PLAIN

FRAMES = ("blocks", "steps", "buckets", "parameters")
OUT_OF_MEMORY = "oom"


def of_strategy(tables: Tables, plan: Plan, k: int = 0) -> tuple[Tables, Plan]:
    """Records and plan as those of a run of one strategy; unchanged where none are side by side."""
    strategies = plan.spec.strategies
    if len(strategies) == 1:
        return tables, dataclasses.replace(plan, spec=strategies[0])
    others = tables.blocks.filter((pl.col("case") != k) & ~pl.col("arm").is_in(OF_NONE))
    keys = in_memory(others.select("launch", "block").unique())
    kept = {name: joined(getattr(tables, name), keys, ["launch", "block"], there=False) for name in FRAMES}
    return tables.having(kept), dataclasses.replace(plan, spec=strategies[k])


def analyze_strategies(
    tables: Tables, plan: Plan, ending: Ending, memory: Sequence[Mapping[int, PeakMemory]]
) -> Analysis:
    """The first strategy's analysis, with all of them beside it. `memory`: of each strategy, by world size."""
    if len(plan.spec.strategies) == 1:
        return analyze(*of_strategy(tables, plan), ending)
    each: list[Analysis] = []
    for k in range(len(plan.spec.strategies)):
        own, alone = of_strategy(tables, plan, k)
        found = analyze(own, alone, dataclasses.replace(ending, memory=memory[k]))
        each.append(dataclasses.replace(found, points=tuple(_with_status(p) for p in found.points)))
    first, *others = each
    warnings = [
        f"{spec.parallel.name}: {said}"
        for spec, found in zip(plan.spec.strategies[1:], others, strict=True)
        for said in found.quality.warnings
        if said not in first.quality.warnings
    ]
    quality = dataclasses.replace(first.quality, warnings=(*first.quality.warnings, *warnings))
    return dataclasses.replace(
        first,
        quality=quality,
        strategies=tuple(_result(tables, plan, k, one.points) for k, one in enumerate(each)),
    )


def _with_status(point: Point) -> Point:
    """A strategy that ran no plain step in a trial that is done did not fit into some rank's memory."""
    missing = point.status == "done" and point.step_ms is None
    return dataclasses.replace(point, status=OUT_OF_MEMORY) if missing else point


def _result(tables: Tables, plan: Plan, k: int, points: tuple[Point, ...]) -> StrategyResult:
    spec, last = plan.spec.strategies[k], max(points, key=lambda p: p.world_size)
    mesh = spec.parallel.mesh(last.world_size)
    return StrategyResult(
        parallel=Degrees(strategy=spec.parallel.name, **dataclasses.asdict(mesh)),
        points=points,
        memory=last.memory,
        against_first=tuple(_against(tables, plan, k, index) for index in range(len(plan.trials))),
    )


def _against(tables: Tables, plan: Plan, k: int, index: int) -> StrategyAtSize:
    """One strategy's samples a second over the first's, by round. Ranks that divide layers have the same samples."""
    trial = plan.trials[index]
    n = trial.world_size
    if k == 0:
        return StrategyAtSize(world_size=n)
    both = {}
    for name, which in (("first", 0), ("other", k)):
        own, alone = of_strategy(tables, plan, which)
        both[name] = read_trial(own, alone, trial)
    first, other = both["first"], both["other"]
    rounds = Rounds(
        {
            "first": first.arm(PLAIN)["step"],
            "other": other.arm(PLAIN, rounds=first.index)["step"],
            "half 0": first.arm(PLAIN, half=0)["step"],
            "half 1": first.arm(PLAIN, half=1)["step"],
        },
        first.launches,
        seed=plan.spec.seed,
    )
    same_samples = [plan.spec.strategies[which].parallel.mesh(n).tensor for which in (0, k)]
    ratio = rounds.ratio(lambda m: m["first"] * same_samples[0] / (m["other"] * same_samples[1]))
    same = rounds.ratio(lambda m: m["half 0"] / m["half 1"])
    floor = abs(same.value - 1) if same else 0.0
    return StrategyAtSize(
        world_size=n,
        throughput=ratio,
        distinguishable=ratio is not None and ratio.differs_from(1, by=floor),
    )
