"""How much of a training's time went into steps that counted, over all launches of its folder. Pure.

Rank 0's time from the start of its first process to its last record is divided into

    steps that counted, waiting for the slowest in them, steps done twice, start-up, time between launches,
    pauses, stalls, and what is left

Steps that counted are the last launch's last step less the first launch's first, by the optimizer's own count, which a
checkpoint carries on; what a launch ran beyond the next one's begin was done twice. Times of steps are means of the
steps between pauses and stalls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from scaling.analysis.decompose.pauses import beside, steps_by_launch
from scaling.analysis.results import Goodput, Point
from scaling.records.frames import in_memory
from scaling.records.rank_file import RankFile
from scaling.records.tables import Tables
from scaling.settings.plan import Plan


@dataclass(frozen=True, slots=True)
class _Launch:
    """One launch as rank 0 has it. Times are of the calendar, s."""

    started: float
    first: float
    """Its first recorded step."""
    last: float
    before: int
    """Steps that the optimizer had taken before; -1: unknown."""
    steps: int


def with_goodput(point: Point, tables: Tables, plan: Plan) -> Point:
    """`tables`: of all launches. The point itself where a process did not tell when it started."""
    launches = _launches(tables, plan)
    if not launches or point.step_ms is None:
        return point
    counted = all(launch.before >= 0 for launch in launches)
    first, last = launches[0], launches[-1]
    twice = sum(max(0, a.before + a.steps - b.before) for a, b in pairwise(launches)) if counted else 0
    steps = last.before + last.steps - first.before if counted else sum(launch.steps for launch in launches)
    step_s, skew = point.step_ms.value / 1e3, point.parts_ms.exposed_skew
    waiting_s = min(step_s, max(0.0, skew.value / 1e3)) if skew else 0.0
    aside = beside(tables, plan)
    named = {pause.kind for pause in aside.pauses}
    stalls_s = sum(s.longer_ms.value * s.longer_ms.n / 1e3 for s in aside.stalls if s.kind not in named)
    wall_s = last.last - first.started
    warm_up_s = plan.spec.measure.warmup_max * step_s  # these steps count, too
    parts = {
        "productive_s": steps * (step_s - waiting_s),
        "waiting_s": steps * waiting_s,
        "done_twice_s": twice * step_s,
        "start_up_s": sum(launch.first - launch.started for launch in launches) - len(launches) * warm_up_s,
        "between_launches_s": sum(b.started - a.last for a, b in pairwise(launches)),
        "pauses_s": sum(pause.seconds.value for pause in aside.pauses if pause.wall_share),
        "stalls_s": stalls_s,
    }
    goodput = Goodput(
        launches=len(launches),
        steps=steps,
        steps_done_twice=twice if counted else None,
        share=steps * step_s / wall_s,
        wall_s=wall_s,
        **parts,
        other_s=wall_s - sum(parts.values()),
    )
    return dataclasses.replace(point, goodput=goodput)


def _launches(tables: Tables, plan: Plan) -> Sequence[_Launch]:
    """Those that told when their process started, in order."""
    spans = tables.blocks.filter((pl.col("rank") == 0) & (pl.col("round") >= 0))
    of_launches = in_memory(
        spans.group_by("launch").agg(pl.col("host_begin_ns").min(), pl.col("host_end_ns").max())
    )
    blocks = {launch: (begin, end) for launch, begin, end in of_launches.iter_rows()}
    ran = steps_by_launch(tables, plan)
    files = [f for f in tables.ranks if f.rank == 0 and f.process_ns and f.launch in blocks]
    return sorted((_launch(f, *blocks[f.launch], ran[f.launch]) for f in files), key=lambda at: at.started)


def _launch(file: RankFile, begin_ns: int, end_ns: int, steps: int) -> _Launch:
    since = file.process_unix_ns - file.process_ns
    last = max([end_ns, *(record.time_ns for record in file.pauses)])
    return _Launch(
        started=file.process_unix_ns / 1e9,
        first=(begin_ns + since) / 1e9,
        last=(last + since) / 1e9,
        before=file.steps_before,
        steps=steps,
    )
