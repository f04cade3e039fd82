"""Tables in, analysis out. Pure: the same tables give the same numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from scaling.analysis import base, contention, crosscheck, curve, launches, own, transports
from scaling.analysis.fits import fits
from scaling.analysis.hosts import hosts
from scaling.analysis.loss import Link
from scaling.analysis.measured import LAUNCHES_MIN
from scaling.analysis.point import point
from scaling.analysis.predict import predict
from scaling.analysis.quantities import TrialRecords
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Fabric,
    Level,
    Memory,
    NcclLog,
    Point,
    Quality,
    RunInfo,
    TrialOutcome,
    Verdict,
)
from scaling.analysis.sources import read_sources
from scaling.analysis.starvation import with_input
from scaling.analysis.stats import Floats, departure
from scaling.analysis.trials import read_trial
from scaling.analysis.verdict import Gain, no_gain, verdicts
from scaling.collect import Tables
from scaling.plan import Plan, Trial
from scaling.units import format_duration

TARGETS = (5.0, 2.0, 1.0, 0.5)
"""Half-widths of the efficiency worth naming, percentage points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the launches ended, as far as the numbers need to know."""

    duration_s: float
    launches: int
    trials: tuple[TrialOutcome, ...]
    warnings: tuple[str, ...] = ()
    memory: Mapping[int, Memory] = field(default_factory=dict)
    """By world size, of the rank that held most."""
    device_name: str = ""
    nccl: NcclLog | None = None
    device_clock_bound_ns: int | None = None
    """By how much an event's host time may be wrong, of the rank where it is most; 0: stamps are the host's own."""
    stolen: tuple[contention.Stolen, ...] = ()


def analyze(tables: Tables, plan: Plan, ending: Ending) -> Analysis:
    """All of analysis.json."""
    spec = plan.spec
    apart: tuple[str, ...] = ()
    if spec.own_loop:
        apart = own.said(tables, plan)
        tables = own.usable(tables, plan)
    counted = {t.world_size: launches.counted(tables, plan, t) for t in plan.trials}
    within = {n: launches.of_launches(tables, counts) for n, counts in counted.items()}
    records = {t.world_size: read_trial(within[t.world_size], t) for t in plan.trials}
    over = base.world_size(plan, records)

    def whole_batch(trial: Trial) -> TrialRecords | None:
        """Strong scaling's baseline, from the launches that the trial itself is read from."""
        first = next((t for t in plan.trials if t.world_size == over), None)
        if spec.mode != "strong" or first is None or trial.world_size == over > 1:
            return None
        if counted[trial.world_size] == counted[over]:
            return records[over]
        return read_trial(within[trial.world_size], first)

    status = {t.world_size: t.status for t in ending.trials}
    warmup = {n: steps for rank in tables.ranks for n, steps in rank.warmup.items()}
    # Where clocks had to be corrected, what compares ranks is uncertain by the correction's bound.
    # So it is by the anchors' where stamps are a device's events.
    used = launches.of_launches(tables, frozenset().union(*counted.values()))
    clock_bound = max((r.clock_bound_ns or 0 for r in used.ranks if r.clock_corrected), default=0)
    clock_bound += ending.device_clock_bound_ns or 0
    cores = min((rank.cores for rank in used.ranks), default=0)
    levels: list[Level] = []
    points: list[Point] = []
    for trial in plan.trials:
        n = trial.world_size
        sweep, link, level = _sweep(within[n], plan, trial, records[n], clock_bound)
        levels += [level] if level else []
        points.append(
            point(
                records[n],
                plan,
                status=status[n],
                warmup_steps=warmup.get(n),
                whole_batch=whole_batch(trial),
                base_world_size=over,
                sweep=sweep,
                link=link,
                clock_bound_ns=clock_bound,
                fed_ns=max((r.fed_ns.get(n, -1) for r in tables.ranks if r.rank < n), default=-1),
                cores=cores,
                memory=ending.memory.get(n, Memory()),
            )
        )
    fabric = Fabric(levels=tuple(levels), nccl=ending.nccl)
    floor = departure(next(p.overhead.aa_floor for p in points if p.world_size == plan.ranks))
    return Analysis(
        schema=SCHEMA,
        run=run_info(plan, ending),
        points=tuple(points),
        fabric=fabric,
        fits=fits(points, spec.mode),
        inference=(),
        verdicts=_verdicts(used, plan, tuple(points), fabric, records, ending.stolen),
        quality=quality(
            used,
            plan,
            ending,
            tuple(points),
            (
                *launches.said(counted, tables),
                *apart,
                *base.said(over),
                *crosscheck.warnings(points, spec),
                *transports.warnings(fabric, spec),
            ),
            own_loop=spec.own_loop,
        ),
        trials=tuple(
            dataclasses.replace(t, launches=tuple(sorted(counted[t.world_size]))) for t in ending.trials
        ),
        hosts=hosts(within[plan.ranks], plan, floor=floor, clock_bound_ns=clock_bound),
    )


def run_info(plan: Plan, ending: Ending) -> RunInfo:
    """What was measured, on what."""
    spec = plan.spec
    return RunInfo(
        id=plan.id,
        model=spec.model.name,
        topology=spec.topology.name,
        precision=spec.precision,
        mode=spec.mode,
        task=spec.task,
        backend=spec.topology.backend,
        device=spec.topology.device,
        started=plan.created,
        duration_s=ending.duration_s,
        synthetic=spec.model.synthetic,
        launches=ending.launches,
        device_name=ending.device_name,
    )


def _sweep(
    tables: Tables, plan: Plan, trial: Trial, records: TrialRecords, clock_bound_ns: int
) -> tuple[dict[str, Floats], Link | None, Level | None]:
    """The size sweep of one world size: as quantities of the trial's rounds, as a fitted link, as a curve."""
    n = trial.world_size
    times = {name: curve.sweep_times(tables.fabric, n, name) for name in plan.spec.measure.collectives}
    swept = {name: curve.sweep_rounds(found, plan.spec.seed) for name, found in times.items()}
    known = {name: sweep for name, sweep in swept.items() if sweep is not None}
    if not known:
        return {}, None, None
    level = curve.level(known, plan, n, clock_bound_ns)
    if "all_reduce" not in known:
        return {}, None, level
    rounds, sizes = known["all_reduce"]
    keys = times["all_reduce"].select("launch", "round").unique().sort("launch", "round").rows()
    values = {
        str(size): records.per_round(dict(zip(keys, rounds.values[str(size)], strict=True))) for size in sizes
    }
    return values, lambda m: curve.fit(m, sizes, n), level


def _reached(tables: Tables, points: tuple[Point, ...], *, own_loop: bool) -> tuple[str, ...]:
    """The efficiency's half-width at the largest world size, and what the next better one would take."""
    known = [p for p in points if p.world_size > 1 and p.efficiency and p.efficiency.half_width is not None]
    if own_loop:
        return own.reached(points)
    if not known:
        return ()
    found = known[-1].efficiency
    assert found is not None
    assert found.half_width is not None
    half, units = found.half_width * 100, found.n
    many = tables.blocks["launch"].n_unique()
    # Of so many launches it is they that are drawn, and no more rounds would help.
    unit = "launches" if many >= LAUNCHES_MIN and units <= many else "rounds"
    text = f"efficiency at {known[-1].world_size} ranks is known to ±{half:.2g} points from {units} {unit}"
    target = next((width for width in TARGETS if width < half / 1.2), None)
    if target is None:
        return (text,)
    more = math.ceil(units * (half / target) ** 2)
    took_s = launches.span_ns(tables.blocks) / 1e9 / units
    return (f"{text}; ±{target:g} would take about {more} {unit} ({format_duration(more * took_s)})",)


def quality(
    tables: Tables,
    plan: Plan,
    ending: Ending,
    points: tuple[Point, ...],
    of_launches: tuple[str, ...],
    *,
    own_loop: bool = False,
) -> Quality:
    """What stands against the numbers."""
    bounds = [rank.clock_bound_ns for rank in tables.ranks if rank.clock_bound_ns is not None]
    return Quality(
        contended_blocks=contention.count(tables.blocks)[0],
        dropped_samples=tables.dropped_samples,
        clock_bound_us=max(bounds) / 1e3 if bounds else None,
        device_clock_bound_us=ending.device_clock_bound_ns / 1e3 if ending.device_clock_bound_ns else None,
        reached=_reached(tables, points, own_loop=own_loop),
        warnings=(
            *map(str, tables.gaps),
            *of_launches,
            *contention.warnings(tables.blocks, plan, ending.stolen),
            *own.pauses(tables),
            *ending.warnings,
        ),
    )


def _verdicts(
    tables: Tables,
    plan: Plan,
    points: tuple[Point, ...],
    fabric: Fabric,
    records: Mapping[int, TrialRecords],
    stolen: tuple[contention.Stolen, ...],
) -> tuple[Verdict, ...]:
    """All points' verdicts; on a contended machine none is more than a hint."""
    by_size = {level.world_size: level for level in fabric.levels}
    sources = {source.world_size: source for source in read_sources(tables, plan, records)}

    def gain(world_size: int) -> Gain:
        source = sources.get(world_size)
        return (
            no_gain if source is None else lambda change: predict(source, change, other_launch=False)["gain"]
        )

    found = [
        v
        for p in points
        for v in with_input(
            verdicts(
                p,
                plan,
                by_size.get(p.world_size),
                gain(p.world_size),
                fabric.nccl_group(p.world_size),
            ),
            p,
            plan,
        )
    ]
    if plan.spec.own_loop:
        found = [own.in_code(v) for v in found]
    doubts = contention.doubts(tables.blocks, plan, stolen)
    if not doubts:
        return tuple(found)
    return tuple(dataclasses.replace(v, confidence="low", evidence=(*v.evidence, *doubts)) for v in found)
