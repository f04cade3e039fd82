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

from scaling.analysis.decompose.pauses import beside, spans, steps_by_launch
from scaling.analysis.results import Goodput, Point
from scaling.records.tables import Tables
from scaling.settings.plan import Plan


def with_goodput(point: Point, tables: Tables, plan: Plan) -> Point:
    """`tables`: of all launches. The point itself where a process did not tell when it started."""
    span, ran = spans(tables), steps_by_launch(tables, plan)
    files = [file for file in tables.ranks if file.rank == 0 and file.process_ns and file.launch in span]
    if not files or point.step_ms is None:
        return point
    files.sort(key=lambda file: file.process_unix_ns)
    started = [file.process_unix_ns / 1e9 for file in files]
    first_s, last_s = (
        [
            at + (span[file.launch][end] - file.process_ns) / 1e9
            for at, file in zip(started, files, strict=True)
        ]
        for end in (0, 1)
    )
    before, after = ([f.steps_before + more * ran[f.launch] for f in files] for more in (0, 1))
    counted = min(before) >= 0  # -1: the optimizer does not count its steps
    twice = sum(max(0, end - begin) for end, begin in zip(after, before[1:], strict=False)) if counted else 0
    steps = after[-1] - before[0] if counted else sum(ran[file.launch] for file in files)
    step_s, skew = point.step_ms.value / 1e3, point.parts_ms.exposed_skew
    waiting_s = min(step_s, max(0.0, skew.value / 1e3)) if skew else 0.0
    pauses, stalls = beside(tables, plan)
    named = {pause.kind for pause in pauses}
    wall_s = last_s[-1] - started[0]
    warm_up_s = plan.spec.measure.warmup_max * step_s  # these steps count, too
    parts = {
        "productive_s": steps * (step_s - waiting_s),
        "waiting_s": steps * waiting_s,
        "done_twice_s": twice * step_s,
        "start_up_s": sum(first_s) - sum(started) - len(files) * warm_up_s,
        "between_launches_s": sum(started[1:]) - sum(last_s[:-1]),
        "pauses_s": sum(pause.seconds.value for pause in pauses if pause.wall_share),
        "stalls_s": sum(s.longer_ms.value * s.longer_ms.n / 1e3 for s in stalls if s.kind not in named),
    }
    goodput = Goodput(
        launches=len(files),
        steps=steps,
        steps_done_twice=twice if counted else None,
        share=steps * step_s / wall_s,
        wall_s=wall_s,
        **parts,
        other_s=wall_s - sum(parts.values()),
    )
    return dataclasses.replace(point, goodput=goodput)
