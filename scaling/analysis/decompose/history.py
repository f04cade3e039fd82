"""Every plain and light probe step of rank 0 in order of time, with the state of its host."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

import polars as pl

from scaling.analysis.decompose.quantities import DURATIONS
from scaling.analysis.quality import contention
from scaling.analysis.quality.launches import before_ns, counted, of_launches
from scaling.analysis.results import StepHistory
from scaling.records.frames import in_memory
from scaling.records.tables import Tables
from scaling.spec.plan import Plan
from scaling.spec.schedule import PLAIN, PROBE

KEYS = ("launch", "round", "begin_ns", "arm")
NEAR_NS = 2_000_000_000
"""A sample farther away than this is not used for a step; samples are taken once a second."""

State = Mapping[str, float]
"""A host at one time: `time_ns` on its own clock, and values by name."""
Column = tuple[float | None, ...]


def histories(
    tables: Tables, plan: Plan, states: Mapping[int, Sequence[State]] | None = None
) -> tuple[StepHistory, ...]:
    """A history for each world size. `states`: by launch, of rank 0's host in order of time."""
    found = []
    for trial in plan.trials:
        within = of_launches(tables, counted(tables, plan, trial))
        rows = (
            _timed(within)
            .filter(
                (pl.col("world_size") == trial.world_size)
                & ((pl.col("arm") == PLAIN) | ((pl.col("arm") == PROBE) & ~pl.col("detailed")))
            )
            .sort("launch", "begin_ns")
            .select(*KEYS, "time_s", *DURATIONS)
        )
        if rows.is_empty():
            continue
        columns: dict[str, Column] = {"time_s": tuple(rows["time_s"].to_list())}
        for name in rows.columns[len(KEYS) + 1 :]:
            columns[f"{name}_ms"] = tuple(None if v is None else v / 1e6 for v in rows[name].to_list())
        columns |= _beside(rows, states or {})
        found.append(
            StepHistory(
                world_size=trial.world_size,
                columns=columns,
                arm=tuple(rows["arm"].to_list()),
                contended=contention.beside(rows, contention.judged(within, plan), trial.world_size),
            )
        )
    return tuple(found)


def _timed(tables: Tables) -> pl.DataFrame:
    """Rank 0's steps with `time_s`: since their own launch's first, after the spans of the launches before it."""
    since_ns = pl.col("begin_ns") - pl.col("first_ns") + pl.col("before_ns")
    before = before_ns(tables.blocks)
    begun = in_memory(tables.steps.group_by("launch").agg(first_ns=pl.col("begin_ns").min()))
    first = in_memory(tables.steps.filter(pl.col("rank") == 0))
    return first.join(begun.join(before, on="launch", how="left"), on="launch", how="left").with_columns(
        time_s=since_ns / 1e9
    )


def _beside(rows: pl.DataFrame, states: Mapping[int, Sequence[State]]) -> dict[str, Column]:
    """The host's state next to each step; None where no sample is near."""
    times = {launch: [int(s["time_ns"]) for s in samples] for launch, samples in states.items()}
    near = [
        _nearest(times.get(launch, []), states.get(launch, ()), begin)
        for launch, begin in rows.select("launch", "begin_ns").iter_rows()
    ]
    names = sorted({name for samples in states.values() for s in samples for name in s} - {"time_ns"})
    return {name: tuple(state.get(name) for state in near) for name in names}


def _nearest(times: Sequence[int], samples: Sequence[State], time_ns: int) -> State:
    after = bisect.bisect_left(times, time_ns)
    around = [i for i in (after - 1, after) if 0 <= i < len(times) and abs(times[i] - time_ns) <= NEAR_NS]
    return samples[min(around, key=lambda i: abs(times[i] - time_ns))] if around else {}
