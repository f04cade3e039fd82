"""A typical step of each rank as spans, for the reports' figures and for Chrome's trace viewer.

Every plain and light probe step of rank 0 in order of time, with the state of its host.

Choose the ranks of a step that are drawn where a figure has no room for all: extremes, then typical ones.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from scaling.analysis.decompose.detailed import BlockStamps, detailed_blocks, merge
from scaling.analysis.decompose.quantities import DURATIONS, WAITS
from scaling.analysis.decompose.sharded import UnitStamps, exposed, has_units, unit_blocks
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.network.channel import channels
from scaling.analysis.network.shared_link import served
from scaling.analysis.quality import contention
from scaling.analysis.results import Drawn, Span, StepHistory, Timeline
from scaling.analysis.statistics.rounds import Floats
from scaling.records.tables import Frame, Tables, before_ns, in_memory
from scaling.settings.plan import Plan
from scaling.settings.schedule import PLAIN, PROBE

RANKS_MAX = 16
"""At most this many ranks are drawn."""
SLOWEST, HOSTS = 5, 3
"""Among the drawn: the slowest ranks overall, and the slowest rank of each of the slowest other hosts."""


def drawn(own_ns: Floats, hosts: Sequence[int]) -> Drawn | None:
    """None for up to RANKS_MAX ranks. `own_ns`: R, each rank's own step; `hosts`: R, the host of each."""
    if len(own_ns) <= RANKS_MAX:
        return None
    order = np.argsort(-own_ns, kind="stable").tolist()
    slowest = order[:SLOWEST]
    of_hosts = _of_hosts(own_ns, order, hosts, {hosts[rank] for rank in slowest})
    chosen = {*slowest, *(rank for _, rank in of_hosts)}
    away = np.argsort(np.abs(own_ns - np.median(own_ns)), kind="stable").tolist()
    typical = [rank for rank in away if rank not in chosen][: RANKS_MAX - len(chosen)]
    return Drawn(slowest=tuple(slowest), of_hosts=tuple(of_hosts), typical=tuple(sorted(typical)))


def _of_hosts(
    own_ns: Floats, order: Sequence[int], hosts: Sequence[int], besides: set[int]
) -> list[tuple[int, int]]:
    """`order`: all ranks, the slowest first. `besides`: hosts that are drawn already."""
    names, at, ranks = np.unique(np.array(hosts), return_inverse=True, return_counts=True)
    if ranks.max() == 1:  # then the slowest hosts are the slowest ranks
        return []
    means = np.bincount(at, own_ns) / ranks
    worst = [host for host in names[np.argsort(-means, kind="stable")].tolist() if host not in besides]
    first = {hosts[rank]: rank for rank in reversed(order)}
    return [(host, first[host]) for host in worst[:HOSTS]]


def timelines(run: RunRecords) -> tuple[Timeline, ...]:
    """One typical step of every world size above 1."""
    per_size, plan = [], run.plan
    for trial in plan.trials:
        n = trial.world_size
        if n == 1:
            continue
        within = run.within(n)
        here = (pl.col("world_size") == n) & (pl.col("rank") < n)
        steps = within.steps.filter(here & (pl.col("arm") == PROBE))
        buckets = within.buckets.lazy().filter(here)
        some = _drawn(steps.filter(pl.col("detailed")), within, plan, n)
        ranks = some.ranks if some else range(n)
        if has_units(buckets):
            mesh = plan.spec.parallel.mesh(n)
            units = unit_blocks(in_memory(steps), buckets, mesh, served(within, plan))
            spans = _typical_step([stamps for _, stamps in units], ranks) if units else ()
            per_size += [Timeline(world_size=n, spans=spans, drawn=some)] if spans else []
            continue
        lengths = in_memory(
            steps.filter(pl.col("detailed"))
            .group_by("launch", "block", "step")
            .agg(length=(pl.col("end_ns") - pl.col("begin_ns")).mean(), ranks=pl.len())
            .filter(pl.col("ranks") == n)
        )
        mean = lengths["length"].mean()
        for launch, block in _nearest(lengths, mean):
            this = (pl.col("launch") == launch) & (pl.col("block") == block)
            here_alone = (steps.filter(this), buckets.filter(this), within.blocks.filter(this))
            whole = [stamps for _, stamps in detailed_blocks(*here_alone, n, channels(within, plan))]
            if whole:
                per_size.append(Timeline(world_size=n, spans=_spans(whole[0], mean, ranks), drawn=some))
                break
    return tuple(per_size)


def _nearest(lengths: pl.DataFrame, mean: Any) -> list[tuple[int, int]]:
    """(launch, block) of all blocks, that of the step whose length is nearest to the mean first."""
    away = (pl.col("length") - mean).abs().min()
    each = lengths.group_by("launch", "block").agg(away=away).sort("away", "launch", "block")
    return each.select("launch", "block").rows()


def _drawn(steps: Frame, tables: Tables, plan: Plan, n: int) -> Drawn | None:
    """The ranks that are drawn, by their own steps. `steps`: detailed ones of `n` ranks."""
    own_step = (pl.col("end_ns") - pl.col("begin_ns") - WAITS).mean()
    means = in_memory(steps.group_by("rank").agg(own=own_step)).sort("rank")
    if means.height != n:  # then no block has all ranks, so none is drawn
        return None
    on = {file.rank: file.host for file in tables.ranks}
    hosts = [on.get(rank, plan.spec.topology.host_of(rank)) for rank in range(n)]
    return drawn(means["own"].to_numpy(), hosts)


def _spans(stamps: BlockStamps, mean: Any, ranks: Sequence[int]) -> tuple[Span, ...]:
    """Some ranks' step whose length is nearest to `mean`, ns."""
    step = int(np.abs((stamps.end - stamps.begin).mean(axis=1) - mean).argmin())
    origin = stamps.begin[step].min()
    merged = merge(stamps)
    busy = _union(list(zip(merged.begun[step], merged.finished[step], strict=True)))
    broadcasts = (stamps.buffer_begin, merged.buffer_skew, stamps.buffer_end)
    drawn_spans: list[Span] = []
    for rank in ranks:
        spans, add = _spans_of(rank, origin)
        begin = stamps.begin[step, rank]
        forward = begin + stamps.input[step, rank]
        backward = stamps.sync_end[step, rank] - stamps.backward[step, rank]
        compute_end, sync_end = stamps.compute_end[step, rank], stamps.sync_end[step, rank]
        optimizer_end = sync_end + stamps.optimizer[step, rank]
        add("compute", "input", begin, forward)
        going = forward
        for begun, skew, ended in zip(*(b[step, rank] for b in broadcasts), strict=True):
            # Those of earlier micro-steps lie where no phase is drawn.
            if begun >= forward and ended <= backward:
                add("compute", "forward", going, begun)
                add("compute", "exposed_skew", begun, begun + skew)
                add("compute", "exposed_transfer", begun + skew, ended)
                going = ended
        add("compute", "forward", going, backward)
        add("compute", "backward", backward, compute_end)
        last = stamps.done[step, rank].max()
        at = compute_end
        for low, high in busy:
            add("compute", "exposed_skew", at, min(max(low, at), last))
            add("compute", "exposed_transfer", max(low, at), min(high, last))
            at = max(at, high)
        add("compute", "optimizer", sync_end, optimizer_end)
        add("compute", "host", optimizer_end, stamps.end[step, rank])
        for k, size in enumerate(stamps.bytes):
            add("link", f"bucket {k}", stamps.launch[step, rank, k], stamps.done[step, rank, k], int(size))
        drawn_spans += spans
    return tuple(drawn_spans)


def _union(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def _typical_step(blocks: Sequence[UnitStamps], ranks: Sequence[int]) -> tuple[Span, ...]:
    """The step whose length is nearest to the mean of all; of some ranks."""
    lengths = [(b.steps["end_ns"] - b.steps["begin_ns"]).mean(axis=1) for b in blocks]
    mean = np.concatenate(lengths).mean()
    block = min(range(len(blocks)), key=lambda i: np.abs(lengths[i] - mean).min())
    step = int(np.abs(lengths[block] - mean).argmin())
    return tuple(s for rank in ranks for s in _unit_spans(blocks[block], step, rank))


def _spans_of(rank: int, origin_ns: float) -> tuple[list[Span], Callable[..., None]]:
    """The spans of a rank, and what adds one: (lane, name, begin ns, end ns, bytes), unless it is empty."""
    spans: list[Span] = []

    def add(lane: str, name: str, low: float, high: float, size: int | None = None) -> None:
        if high > low:
            begin, end = (round((value - origin_ns) / 1e6, 4) for value in (low, high))
            spans.append(Span(rank=rank, lane=lane, name=name, begin_ms=begin, end_ms=end, bytes=size))

    return spans, add


def _unit_spans(stamps: UnitStamps, step: int, rank: int) -> list[Span]:
    origin = stamps.steps["begin_ns"][step].min()
    at = {name: values[step, rank] for name, values in stamps.steps.items()}
    forward, backward = at["begin_ns"] + at["input_ns"], at["sync_end_ns"] - at["backward_ns"]
    optimized = at["sync_end_ns"] + at["optimizer_ns"]
    spans, add = _spans_of(rank, origin)
    add("compute", "input", at["begin_ns"], forward)
    moved, skew = (values[step, rank] for values in exposed(stamps))
    waits = sorted((begin, k) for k, begin in enumerate(stamps.wait[step, rank]) if begin > 0)
    for name, low, high in (("forward", forward, backward), ("backward", backward, at["sync_end_ns"])):
        going = low
        for begin, k in waits:
            if not low <= begin < high or moved[k] + skew[k] <= 0:
                continue
            add("compute", name, going, begin)
            add("compute", "exposed_skew", max(going, begin), begin + skew[k])
            add("compute", "exposed_transfer", begin + skew[k], begin + skew[k] + moved[k])
            going = max(going, begin + skew[k] + moved[k])
        add("compute", name, going, high)
    add("compute", "optimizer", at["sync_end_ns"], optimized)
    add("compute", "host", optimized, at["end_ns"])
    for k, call in enumerate(stamps.sent):
        begin, end = stamps.launch[step, rank, k], stamps.done[step, rank, k]
        add(call.axis, f"{call.kind} of unit {call.unit}, {call.phase}", begin, end, call.bytes)
    return spans


KEYS = ("launch", "round", "begin_ns", "arm")
NEAR_NS = 2_000_000_000
"""A sample farther away than this is not used for a step; samples are taken once a second."""

State = Mapping[str, float]
"""A host at one time: `time_ns` on its own clock, and values by name."""
Column = tuple[float | None, ...]


def histories(
    run: RunRecords, states: Mapping[int, Sequence[State]] | None = None
) -> tuple[StepHistory, ...]:
    """A history for each world size. `states`: by launch, of rank 0's host in order of time."""
    per_size = []
    for trial in run.plan.trials:
        within = run.within(trial.world_size)
        light = (pl.col("arm") == PLAIN) | ((pl.col("arm") == PROBE) & ~pl.col("detailed"))
        rows = _timed(within).filter((pl.col("world_size") == trial.world_size) & light)
        rows = rows.sort("launch", "begin_ns").select(*KEYS, "time_s", *DURATIONS)
        if rows.is_empty():
            continue
        columns: dict[str, Column] = {"time_s": tuple(rows["time_s"].to_list())}
        for name in rows.columns[len(KEYS) + 1 :]:
            columns[f"{name}_ms"] = tuple(None if v is None else v / 1e6 for v in rows[name].to_list())
        columns |= _beside(rows, states or {})
        per_size.append(
            StepHistory(
                world_size=trial.world_size,
                columns=columns,
                arm=tuple(rows["arm"].to_list()),
                contended=contention.beside(rows, contention.judged(within, run.plan), trial.world_size),
            )
        )
    return tuple(per_size)


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
        _nearest_sample(times.get(launch, []), states.get(launch, ()), begin)
        for launch, begin in rows.select("launch", "begin_ns").iter_rows()
    ]
    names = sorted({name for samples in states.values() for s in samples for name in s} - {"time_ns"})
    return {name: tuple(state.get(name) for state in near) for name in names}


def _nearest_sample(times: Sequence[int], samples: Sequence[State], time_ns: int) -> State:
    after = bisect.bisect_left(times, time_ns)
    around = [i for i in (after - 1, after) if 0 <= i < len(times) and abs(times[i] - time_ns) <= NEAR_NS]
    return samples[min(around, key=lambda i: abs(times[i] - time_ns))] if around else {}
