"""What is said of a run as a whole: what was run, how it ended, and how good its numbers are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from scaling.analysis.decompose import own_loop
from scaling.analysis.quality import contention, launches
from scaling.analysis.results import Details, NcclLog, PeakMemory, Point, Quality, RunInfo, TrialStatus
from scaling.analysis.results.measured import LAUNCHES_MIN
from scaling.records.tables import Tables
from scaling.settings.plan import Plan
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
            *launches.warnings(tables, plan),
            *contention.warnings(judged, plan, ending.stolen),
            *own_loop.updates(tables, plan),
            *_uneven_clocks(tables),
            *ending.warnings,
        ),
    )


def _reached(tables: Tables, points: tuple[Point, ...]) -> tuple[str, ...]:
    """The efficiency's half-width at the largest world size, and what the next smaller one would take."""
    given = [p for p in points if p.world_size > 1 and p.efficiency and p.efficiency.half_width is not None]
    if not given:
        return ()
    efficiency = given[-1].efficiency
    assert efficiency is not None
    assert efficiency.half_width is not None
    half, units = efficiency.half_width * 100, efficiency.n
    at = f"efficiency at {given[-1].world_size} ranks is"
    many = len(tables.launches)
    # From LAUNCHES_MIN launches on, the launches are resampled, and more rounds would not help.
    unit = "launches" if many >= LAUNCHES_MIN and units <= many else "rounds"
    if not efficiency.tells:
        return (f"{at} {UNKNOWN}: {units} {unit} were too few or too uneven",)
    text = f"{at} known to ±{two_digits(half)} points from {units} {unit}"
    target = next((width for width in TARGETS if width < half / 1.2), None)
    if target is None:
        return (text,)
    more = math.ceil(units * (half / target) ** 2)
    if more > contention.MORE_MOST * units:
        return (f"{text}, too uneven to say how many would do",)
    took_s = launches.span_ns(tables.blocks) / 1e9 / units
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
