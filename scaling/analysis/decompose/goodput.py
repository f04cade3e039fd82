"""How much of a training's time went into steps that counted, over all launches of its folder. Pure.

Rank 0's time from the start of its first process to its last record is divided into

    steps that counted, waiting for the slowest in them, steps done twice, start-up, time between launches,
    pauses, stalls, and what is left

Steps that counted are the last launch's last step less the first launch's first, by the optimizer's own count, which a
checkpoint carries on; what a launch ran beyond the next one's begin was done twice. The steps of a launch take the mean
of its plain steps between pauses and stalls, since a machine is not as fast in every launch.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl

from scaling.analysis.decompose.pauses import beside, disturbed, spans, steps_by_launch
from scaling.analysis.results import Goodput, Point
from scaling.records.frames import in_memory
from scaling.records.tables import Tables
from scaling.settings.plan import Plan
from scaling.settings.schedule import PLAIN


def with_goodput(point: Point, tables: Tables, plan: Plan) -> Point:
    """`tables`: of all launches. The point itself where a process did not tell when it started."""
    span, ran = spans(tables), steps_by_launch(tables, plan)
    files = [file for file in tables.ranks if file.rank == 0 and file.process_ns and file.launch in span]
    if not files or point.step_ms is None:
        return point
    files.sort(key=lambda file: file.process_unix_ns)
    started_s = np.array([file.process_unix_ns for file in files]) / 1e9
    first_s, last_s = np.array([np.subtract(span[f.launch], f.process_ns) for f in files]).T / 1e9 + started_s
    before, every = np.array([(file.steps_before, ran[file.launch]) for file in files]).T
    numbered = bool(min(before) >= 0)  # -1: the optimizer does not count its steps
    counted = np.diff([*before, before[-1] + every[-1]]) if numbered else every
    twice = np.maximum(every - counted, 0)
    usual_s, skew = point.step_ms.value / 1e3, point.parts_ms.exposed_skew
    of_launch = _step_s(tables, plan)
    step_s = np.array([of_launch.get(file.launch, usual_s) for file in files])
    counted_s, twice_s = float(counted @ step_s), float(twice @ step_s)
    waiting = min(1.0, max(0.0, skew.value / point.step_ms.value)) if skew else 0.0
    pauses, stalls = beside(tables, plan)
    named = {pause.kind for pause in pauses}
    wall_s = float(last_s[-1] - started_s[0])
    warm_up_s = plan.spec.measure.warmup_max * step_s  # these steps count, too
    parts = {
        "productive_s": counted_s * (1 - waiting),
        "waiting_s": counted_s * waiting,
        "done_twice_s": twice_s,
        "start_up_s": float((first_s - started_s - warm_up_s).sum()),
        "between_launches_s": float((started_s[1:] - last_s[:-1]).sum()),
        "pauses_s": sum(pause.seconds.value for pause in pauses if pause.wall_share),
        "stalls_s": sum(s.longer_ms.value * s.longer_ms.n / 1e3 for s in stalls if s.kind not in named),
    }
    goodput = Goodput(
        launches=len(files),
        steps=int(counted.sum()),
        steps_done_twice=int(twice.sum()) if numbered else None,
        share=counted_s / wall_s,
        wall_s=wall_s,
        **parts,
        other_s=wall_s - sum(parts.values()),
    )
    return dataclasses.replace(point, goodput=goodput)


def _step_s(tables: Tables, plan: Plan) -> dict[int, float]:
    """By launch: the mean of its plain steps between pauses and stalls, s; those with none have no entry."""
    plain = tables.steps.filter((pl.col("arm") == PLAIN) & (pl.col("round") >= 0))
    left = plain.join(disturbed(tables, plan).lazy(), on=["launch", "block"], how="anti")
    took = left.group_by("launch").agg((pl.col("end_ns") - pl.col("begin_ns")).mean() / 1e9)
    return dict(in_memory(took).iter_rows())
