"""Tables in, analysis out. Pure: the same tables give the same numbers.

Strategies measured side by side: each one's own analysis, and their throughputs against the first one's.

Blocks without a strategy (bare_one, bare_all, the size sweep) are shared. A ratio is of plain steps of the same rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import polars as pl

from scaling.analysis import invariants
from scaling.analysis.about import Ending, launch_sentences, quality, run_info
from scaling.analysis.decompose import own_loop, pauses
from scaling.analysis.decompose.drift import drifts
from scaling.analysis.decompose.hosts import hosts, spread
from scaling.analysis.decompose.loss import Link, base_warning, base_world_size
from scaling.analysis.decompose.point import point
from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.decompose.starvation import with_input
from scaling.analysis.decompose.trials import RunRecords, withheld
from scaling.analysis.network import cliffs, curve, links, nccl_causes
from scaling.analysis.predict.predictions import predict
from scaling.analysis.predict.sources import read_sources
from scaling.analysis.quality import contention, details, memory, untracked_traffic
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Degrees,
    Fabric,
    FabricLevel,
    PeakMemory,
    Point,
    StrategyAtSize,
    StrategyResult,
    Verdict,
    at,
)
from scaling.analysis.statistics.rounds import Floats, Rounds, among
from scaling.analysis.verdicts.host_remedies import Host
from scaling.analysis.verdicts.remedies import Gain, no_gain
from scaling.analysis.verdicts.verdict import NOISE, verdicts
from scaling.records.tables import Tables, in_memory, of_launches, span_ns
from scaling.settings.plan import Plan, Trial
from scaling.settings.schedule import OF_NONE, PLAIN


def analyze(run: RunRecords, ending: Ending) -> Analysis:
    """All of analysis.json."""
    everything, run = run, run.usable
    plan, spec, tables, counted = run.plan, run.plan.spec, run.tables, run.counted
    within = {n: run.within(n) for n in counted}
    records = {n: run.trial(n) for n in counted}
    compared = {
        n: details.details(recorded, plan, ending.device_name, withheld(within[n], n))
        for n, recorded in records.items()
    }
    unused = {n: detail.unused for n, detail in compared.items() if detail and detail.unused}
    records |= {n: records[n].without_details() for n in unused}
    few = {n: why for n, trial in records.items() if (why := details.too_few(trial))}
    records |= {n: records[n].without_detailed_arms() for n in few}
    unused |= few
    over = base_world_size(plan, records)

    def base(n: int) -> TrialRecords | None:
        """The trial that is the baseline, from the launches that the trial itself is read from."""
        if (spec.mode != "strong" and over == 1) or over not in counted or n == over > 1:
            return None
        return records[over] if counted[n] == counted[over] else run.trial(over, launches_of=n)

    status = {t.world_size: t.status for t in ending.trials}
    warmup = {n: steps for rank in tables.ranks for n, steps in rank.warmup.items()}
    # Where clocks had to be corrected, what compares ranks is uncertain by the correction's bound.
    # So it is by the anchors' where stamps are a device's events.
    used = of_launches(tables, frozenset().union(*counted.values()))
    clock_bound = max((r.clock_bound_ns or 0 for r in used.ranks if r.clock_corrected), default=0)
    clock_bound += ending.device_clock_bound_ns or 0
    cores = min((rank.cores for rank in used.ranks), default=0)
    levels: list[FabricLevel] = []
    points: list[Point] = []
    for trial in plan.trials:
        n = trial.world_size
        sweep, link, level = _sweep(within[n], plan, trial, records[n], clock_bound)
        levels += [level] if level else []
        at_size = point(
            records[n],
            plan,
            status=status[n],
            warmup_steps=warmup.get(n),
            base=base(n),
            base_world_size=over,
            sweep=sweep,
            link=link,
            clock_bound_ns=clock_bound,
            fed_ns=max((r.fed_ns.get(n, -1) for r in tables.ranks if r.rank < n), default=-1),
            cores=cores,
            memory=ending.memory.get(n, PeakMemory()),
        )
        if plan.kind.followed:
            paused, stalls = pauses.beside(everything.within(n), plan)
            at_size = pauses.with_goodput(at_size, everything.tables, plan)
            at_size = replace(at_size, pauses=paused, stalls=stalls)
        points.append(replace(at_size, drifts=drifts(records[n], within[n], plan)))
    fabric = Fabric(levels=tuple(levels), nccl=ending.nccl)
    if ending.ranks_per_device == 1:  # ranks that share a device are no machine of so many devices
        fabric = replace(fabric, others=links.beside_runs(fabric, ending.device_name, spec))
    floor = next(p.overhead.floor for p in points if p.world_size == plan.ranks)
    return Analysis(
        schema=SCHEMA,
        run=run_info(plan, ending),
        points=tuple(points),
        fabric=fabric,
        inference=(),
        verdicts=_verdicts(run, used, tuple(points), fabric, ending, unused),
        quality=quality(
            used,
            plan,
            ending,
            tuple(points),
            (
                *launch_sentences(counted, tables),
                *(own_loop.other_batches(everything.tables, plan) if plan.kind.followed else ()),
                *base_warning(over, spec.mode, points),
                *memory.clock_warnings(points, spec),
                *nccl_causes.warnings(fabric, spec),
                *cliffs.warnings(fabric, spec),
                *untracked_traffic.warnings(used, plan, ending.buffers_bytes),
            ),
            compared[plan.ranks],
        ),
        trials=tuple(replace(t, launches=tuple(sorted(counted[t.world_size]))) for t in ending.trials),
        hosts=hosts(within[plan.ranks], plan, floor=floor, clock_bound_ns=clock_bound),
        ranks=spread(within[plan.ranks], plan, floor=floor),
    )


def _sweep(
    tables: Tables, plan: Plan, trial: Trial, records: TrialRecords, clock_bound_ns: int
) -> tuple[dict[str, Floats], Link | None, FabricLevel | None]:
    """The size sweep of one world size: as quantities of the trial's rounds, as a fitted link, as a curve."""
    n = trial.world_size
    times = {name: curve.sweep_times(tables.fabric, n, name) for name in plan.spec.measure.collectives}
    swept = {name: curve.sweep_rounds(rows, plan.spec.seed) for name, rows in times.items()}
    measured = {name: sweep for name, sweep in swept.items() if sweep is not None}
    if not measured:
        return {}, None, None
    level = curve.level(measured, plan, n, clock_bound_ns, curve.host_latency(tables.fabric, n))
    if "all_reduce" not in measured:
        return {}, None, level
    rounds, sizes = measured["all_reduce"]
    keys = times["all_reduce"].select("launch", "round").unique().sort("launch", "round").rows()
    values = {
        str(size): records.per_round(dict(zip(keys, rounds.values[str(size)], strict=True))) for size in sizes
    }
    return values, lambda m: curve.fit(m, sizes, n), level


def _verdicts(
    run: RunRecords,
    tables: Tables,
    points: tuple[Point, ...],
    fabric: Fabric,
    ending: Ending,
    unused: Mapping[int, str],
) -> tuple[Verdict, ...]:
    """All points' verdicts; on a contended machine, or where ranks may have waited unseen, none is more than a hint."""
    plan = run.plan
    by_size = {level.world_size: level for level in fabric.levels}
    sources = {source.world_size: source for source in read_sources(run, without_details=unused)}

    def gain(world_size: int) -> Gain:
        source = sources.get(world_size)
        return (
            no_gain if source is None else lambda change: predict(source, change, other_launch=False)["gain"]
        )

    host = Host(
        cores=min((rank.cores for rank in tables.ranks), default=0),
        numa_nodes=max((rank.numa_nodes for rank in tables.ranks), default=0),
        ranks_per_device=ending.ranks_per_device,
        torch=ending.torch,
    )
    listed: tuple[Verdict, ...] = ()
    for p in points:
        n = p.world_size
        causes = verdicts(p, plan, by_size.get(n), gain(n), fabric.nccl_group(n), host, fabric.levels)
        listed += with_input(causes, p, plan)
    buffers_share = untracked_traffic.share_in_buffers(tables) if ending.buffers_bytes else 0.0
    trials = [run.trial(p.world_size) for p in points]
    for p, trial in zip(points, trials, strict=True):
        clashes = invariants.contradictions(p, buffers_share)
        listed = invariants.without_contradicted(listed, clashes, p.world_size)
        listed = untracked_traffic.without_late(listed, trial)
    detailed = {p.world_size for p in points if p.loss_by_kind}
    listed = tuple(details.with_reason(v, unused, detailed) for v in listed)
    if plan.kind.followed:
        listed = tuple(own_loop.in_code(v) for v in listed)
    else:
        listed = tuple(_and_why_undecided(v, tables, points, ending) for v in listed)
    listed = untracked_traffic.bounded(listed, tables, trials)
    doubts = (
        *contention.doubts(contention.judged(tables, plan), plan, ending.stolen),
        *untracked_traffic.doubts(tables, plan, ending.buffers_bytes),
    )
    return tuple(v.as_hint(*doubts) for v in listed) if doubts else listed


def _and_why_undecided(verdict: Verdict, tables: Tables, points: Sequence[Point], ending: Ending) -> Verdict:
    """With what the machine's noise hides, where it is why no cause is named."""
    point = at(verdict.world_size, points)
    noisy = bool(verdict.evidence) and verdict.evidence[0].startswith(NOISE)
    if point is None or point.efficiency is None or not noisy:
        return verdict
    round_s = span_ns(tables.blocks) / 1e9 / point.efficiency.n
    why = contention.unquiet(point, round_s, ending.stolen)
    if not why:
        return verdict
    longer, *uncertain = verdict.evidence
    return replace(verdict, evidence=(*why[:1], *uncertain, longer, *why[1:]))


FRAMES = ("blocks", "steps", "buckets", "parameters")
OUT_OF_MEMORY = "oom"


def of_strategies(tables: Tables, plan: Plan) -> tuple[RunRecords, ...]:
    """The records of each strategy; unchanged where none are side by side."""
    strategies = plan.spec.strategies
    if len(strategies) == 1:
        return (RunRecords(tables, replace(plan, spec=strategies[0])),)
    runs = []
    for k, strategy in enumerate(strategies):
        others = tables.blocks.filter((pl.col("case") != k) & ~pl.col("arm").is_in(OF_NONE))
        keys, on = in_memory(others.select("launch", "block").unique()).lazy(), ["launch", "block"]
        kept = {name: getattr(tables, name).lazy().join(keys, on=on, how="anti") for name in FRAMES}
        runs.append(RunRecords(tables.having(kept), replace(plan, spec=strategy)))
    return tuple(runs)


def analyze_strategies(
    runs: Sequence[RunRecords], ending: Ending, memory: Sequence[Mapping[int, PeakMemory]]
) -> Analysis:
    """The first strategy's analysis, with all of them beside it. `memory`: of each strategy, by world size."""
    if len(runs) == 1:
        return analyze(runs[0], ending)
    each: list[Analysis] = []
    for run, peaks in zip(runs, memory, strict=True):
        analysis = analyze(run, replace(ending, memory=peaks))
        each.append(replace(analysis, points=tuple(_with_status(p) for p in analysis.points)))
    first, *others = each
    warnings = [
        f"{run.plan.spec.parallel.name}: {warning}"
        for run, analysis in zip(runs[1:], others, strict=True)
        for warning in analysis.quality.warnings
        if warning not in first.quality.warnings
    ]
    quality = replace(first.quality, warnings=(*first.quality.warnings, *warnings))
    return replace(
        first,
        quality=quality,
        strategies=tuple(
            _result(run, runs[0], part.points, len(others)) for run, part in zip(runs, each, strict=True)
        ),
    )


def _with_status(point: Point) -> Point:
    """A strategy that ran no plain step in a trial that is done did not fit into some rank's memory."""
    missing = point.status == "done" and point.step_ms is None
    return replace(point, status=OUT_OF_MEMORY) if missing else point


def _result(run: RunRecords, first: RunRecords, points: tuple[Point, ...], others: int) -> StrategyResult:
    spec, last = run.plan.spec, max(points, key=lambda p: p.world_size)
    mesh = spec.parallel.mesh(last.world_size)
    return StrategyResult(
        parallel=Degrees(strategy=spec.parallel.name, **asdict(mesh)),
        points=points,
        memory=last.memory,
        against_first=tuple(
            _against(run, first, trial.world_size, others * len(run.plan.trials)) for trial in run.plan.trials
        ),
    )


def _against(run: RunRecords, base: RunRecords, n: int, comparisons: int) -> StrategyAtSize:
    """One strategy's samples a second over the first's, by round: one of `comparisons` such ratios.

    Ranks that divide layers have the same samples.
    """
    if run is base:
        return StrategyAtSize(world_size=n)
    first, other = base.trial(n), run.trial(n)
    rounds = Rounds(
        {
            "first": first.arm(PLAIN)["step"],
            "other": other.arm(PLAIN, rounds=first.index)["step"],
            "half 0": first.arm(PLAIN, half=0)["step"],
            "half 1": first.arm(PLAIN, half=1)["step"],
        },
        first.launches,
        seed=run.plan.spec.seed,
    )
    same_samples = [strategy.plan.spec.parallel.mesh(n).tensor for strategy in (base, run)]
    ratio = rounds.ratio(lambda m: m["first"] * same_samples[0] / (m["other"] * same_samples[1]))
    same = rounds.ratio(lambda m: m["half 0"] / m["half 1"])
    floor = abs(same.value - 1) if same else 0.0
    return StrategyAtSize(
        world_size=n,
        throughput=ratio,
        distinguishable=ratio is not None and among(ratio, comparisons).differs_from(1, by=floor),
    )
