"""What is said of a run as a whole: what was run, how it and its trials ended, and how good its numbers are."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from scaling.analysis.decompose import own_loop
from scaling.analysis.decompose.trials import ended_whole
from scaling.analysis.quality import contention
from scaling.analysis.results import Details, NcclLog, PeakMemory, Point, Quality, RunInfo, TrialStatus
from scaling.analysis.results.measured import LAUNCHES_MIN
from scaling.records.run import Status
from scaling.records.tables import Tables, in_memory, span_ns
from scaling.settings.plan import Plan
from scaling.settings.sample import details_line
from scaling.settings.schedule import PLAIN
from scaling.units import UNKNOWN, format_duration, two_digits

TARGETS = (5.0, 2.0, 1.0, 0.5)
"""Half-widths of the efficiency that are worth aiming at, percentage points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the launches ended, and what they left beside the tables."""

    duration_s: float
    launches: int
    trials: tuple[TrialStatus, ...]
    warnings: tuple[str, ...] = ()
    memory: Mapping[int, PeakMemory] = field(default_factory=dict)
    """By world size: the rank with the largest peak."""
    device_name: str = ""
    ranks_per_device: int = 1
    """Ranks that share a device, where it has most of them."""
    torch: str = ""
    """Version of torch that rank 0 ran; empty where it is not known."""
    nccl: NcclLog | None = None
    binding: str = ""
    """How ranks were bound to cores; empty where nobody tried."""
    device_clock_bound_ns: int | None = None
    """Largest error over ranks of a device event's time on the host's clock; 0: stamps are the host's own."""
    stolen: tuple[contention.Stolen, ...] = ()
    buffers_bytes: int = 0
    """Bytes of the module's buffers, which DDP keeps alike on all ranks."""


def run_info(plan: Plan, ending: Ending) -> RunInfo:
    """What was run and on what: the plan's names, and how long it took in how many launches."""
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
        simulated=spec.topology.is_simulated,
        launches=ending.launches,
        device_name=ending.device_name,
        ranks_per_device=ending.ranks_per_device,
        binding=ending.binding,
    )


def quality(
    tables: Tables,
    plan: Plan,
    ending: Ending,
    points: tuple[Point, ...],
    notes: tuple[str, ...],
    details: Details | None = None,
) -> Quality:
    """What reduces confidence in the numbers. `notes`: further warnings, put after those about missing records."""
    judged = contention.judged(tables, plan)
    bounds = [rank.clock_bound_ns for rank in tables.ranks if rank.clock_bound_ns is not None]
    return Quality(
        contended_blocks=contention.count(judged)[0],
        dropped_samples=tables.dropped_samples,
        dropped_blocks=tables.dropped_blocks,
        clock_bound_us=max(bounds) / 1e3 if bounds else None,
        device_clock_bound_us=ending.device_clock_bound_ns / 1e3 if ending.device_clock_bound_ns else None,
        details=details,
        reached=own_loop.reached(points) if plan.kind.followed else _reached(tables, points),
        warnings=(
            *map(str, tables.gaps),
            *notes,
            *_sampled_details(tables, plan),
            *contention.warnings(judged, plan, ending.stolen),
            *own_loop.updates(tables, plan),
            *_uneven_clocks(tables),
            *ending.warnings,
        ),
    )


def _reached(tables: Tables, points: tuple[Point, ...]) -> tuple[str, ...]:
    """The efficiency's half-width at the largest world size, and what the next smaller one would take."""
    given = [
        (p.world_size, p.efficiency, half)
        for p in points
        if p.world_size > 1 and p.efficiency and (half := p.efficiency.half_width) is not None
    ]
    if not given:
        return ()
    world_size, efficiency, half = given[-1]
    points_off, units = half * 100, efficiency.n
    at = f"efficiency at {world_size} ranks is"
    many = len(tables.launches)
    # From LAUNCHES_MIN launches on, the launches are resampled, and more rounds would not help.
    unit = "launches" if many >= LAUNCHES_MIN and units <= many else "rounds"
    if not efficiency.tells:
        return (f"{at} {UNKNOWN}: {units} {unit} were too few or too uneven",)
    text = f"{at} known to ±{two_digits(points_off)} points from {units} {unit}"
    target = next((width for width in TARGETS if width < points_off / 1.2), None)
    if target is None:
        return (text,)
    more = math.ceil(units * (points_off / target) ** 2)
    if more > contention.MORE_MOST * units:
        return (f"{text}, too uneven to say how many would do",)
    took_s = span_ns(tables.blocks) / 1e9 / units
    return (f"{text}; ±{target:g} would take about {more} {unit} ({format_duration(more * took_s)})",)


def _uneven_clocks(tables: Tables) -> tuple[str, ...]:
    """A warning where clocks drifted by more between their comparisons than the comparisons' errors explain."""
    bent = {rank.rank: rank.clock_bend_ns for rank in tables.ranks if rank.clock_bend_ns}
    if not bent:
        return ()
    worst = max(bent, key=bent.__getitem__)
    ranks = "rank" if len(bent) == 1 else f"{len(bent)} ranks, most that of rank"
    return (
        f"the clock of {ranks} {worst} drifted unevenly, by {bent[worst] / 1e3:.0f} us more than its comparisons with "
        "rank 0's explain; the bound of the ranks' clocks contains it",
    )


def launch_sentences(counted: Mapping[int, Collection[int]], tables: Tables) -> Iterator[str]:
    """Warnings where the trials do not all come from the same launches, or where a launch is not counted."""
    used = {launch for launches in counted.values() for launch in launches}
    if len({frozenset(launches) for launches in counted.values() if launches}) > 1:
        which = "; ".join(f"{n}: {_list(launches)}" for n, launches in counted.items() if launches)
        yield (
            f"world sizes were measured in different launches ({which}), and the intervals do not cover what changes "
            "from launch to launch"
        )
    unused = tables.launches - used
    if unused and used:
        why = "other launches measured more of the same trials"
        if all(ended_whole(tables, launch) for launch in used):
            why = f"launch {_list(used)} measured the same trials whole"
        yield f"launch {_list(unused)} was cut off and is not counted: {why}"


def _list(launches: Collection[int]) -> str:
    return ", ".join(map(str, sorted(launches)))


def _sampled_details(tables: Tables, plan: Plan) -> Iterator[str]:
    """A line for each launch of which only some measured rounds have details."""
    by_launch = {file.launch: set(file.detailed) for file in tables.ranks if file.detailed}
    for launch, detailed in sorted(by_launch.items()):
        plain = tables.blocks.filter((pl.col("launch") == launch) & (pl.col("arm") == PLAIN))
        numbers = set(in_memory(plain.select("round").unique())["round"])
        if numbers - detailed:
            where = f"launch {launch}: " if len(by_launch) > 1 else ""
            yield f"{where}{details_line(plan, detailed, max(numbers) + 1)}"


def endings(plan: Plan, status: Status | None, tables: Tables) -> tuple[TrialStatus, ...]:
    """A status for each trial, in the plan's order. `status`: None where status.json is missing."""
    if plan.kind.followed:
        return tuple(_of_own_loop(t.world_size, tables) for t in plan.trials)
    return tuple(_of_trial(t.world_size, status, tables) for t in plan.trials)


def _of_own_loop(world_size: int, tables: Tables) -> TrialStatus:
    """How an own loop stands, from the end of its latest launch's records."""
    latest = max((rank.launch for rank in tables.ranks), default=0)
    ranks = {rank.rank: rank for rank in tables.ranks if rank.launch == latest}
    failed = next((rank for rank in ranks.values() if rank.state == "failed"), None)
    missing = next((rank for rank in range(world_size) if rank not in ranks), None)
    going = next((rank.rank for rank in ranks.values() if rank.state is None), None)
    if failed is not None:
        return TrialStatus(world_size=world_size, status="failed", error=failed.error, rank=failed.rank)
    if missing is not None:
        return TrialStatus(world_size=world_size, status="lost", error="left no records", rank=missing)
    if going is not None:
        error = "the loop was still running, or was ended from outside"
        return TrialStatus(world_size=world_size, status="interrupted", error=error, rank=going)
    return TrialStatus(world_size=world_size, status="done")


def _of_trial(world_size: int, status: Status | None, tables: Tables) -> TrialStatus:
    """How one trial stands, from how the launches ended and from the records on disk."""
    stood = next((t for t in status.trials if t.world_size == world_size), None) if status else None
    if stood is None:
        return _without_status(world_size, tables)
    if stood.status == "running":
        return TrialStatus(world_size=world_size, status="interrupted", error="the run was cut off")
    if stood.status == "done":
        whole = {(rank.launch, rank.rank) for rank in tables.ranks if rank.ended and not rank.cut_off}
        wanted = [(launch, rank) for launch in stood.launches for rank in range(world_size)]
        missing = next((rank for launch, rank in wanted if (launch, rank) not in whole), None)
        if missing is not None:
            error = next((str(gap) for gap in tables.gaps if gap.rank == missing), None)
            return TrialStatus(world_size=world_size, status="lost", error=error, rank=missing)
    return TrialStatus(world_size=world_size, status=stood.status, error=stood.error, rank=stood.rank)


def _without_status(world_size: int, tables: Tables) -> TrialStatus:
    """Done where some launch measured it and all its ranks' records are whole; the number of launches is not known."""
    whole = {(rank.launch, rank.rank) for rank in tables.ranks if not rank.cut_off}
    here = tables.blocks.filter(pl.col("world_size") == world_size)
    measured = in_memory(here.select("launch").unique())["launch"].to_list()
    if any(all((launch, rank) in whole for rank in range(world_size)) for launch in measured):
        return TrialStatus(world_size=world_size, status="done")
    return TrialStatus(world_size=world_size, status="lost", error="status.json is missing")
