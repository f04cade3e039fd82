"""A typical step of each rank as spans, for the reports' figures and for Chrome's trace viewer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from scaling.analysis.decompose.detailed import detailed_blocks
from scaling.analysis.decompose.drawn import drawn
from scaling.analysis.decompose.merge import BlockStamps, merge
from scaling.analysis.decompose.quantities import WAITS
from scaling.analysis.decompose.served import channels, served
from scaling.analysis.decompose.unit_stamps import has_units, unit_blocks
from scaling.analysis.decompose.unit_timeline import typical_step
from scaling.analysis.quality.launches import counted, of_launches
from scaling.analysis.results import Drawn, Span, Timeline
from scaling.records.frames import Frame, in_memory
from scaling.records.tables import Tables
from scaling.spec.plan import Plan
from scaling.spec.schedule import PROBE


def timelines(tables: Tables, plan: Plan) -> tuple[Timeline, ...]:
    """One typical step of every world size above 1."""
    found = []
    for trial in plan.trials:
        n = trial.world_size
        if n == 1:
            continue
        within = of_launches(tables, counted(tables, plan, trial))
        here = (pl.col("world_size") == n) & (pl.col("rank") < n)
        own = within.steps.filter(here & (pl.col("arm") == PROBE))
        buckets = within.buckets.filter(here)
        some = _drawn(own.filter(pl.col("detailed")), within, plan, n)
        ranks = some.ranks if some else range(n)
        if has_units(buckets.lazy()):
            mesh = plan.spec.parallel.mesh(n)
            units = unit_blocks(in_memory(own), buckets.lazy(), mesh, served(within, plan))
            spans = typical_step([stamps for _, stamps, _ in units], ranks) if units else ()
            found += [Timeline(world_size=n, spans=spans, drawn=some)] if spans else []
            continue
        lengths = in_memory(
            own.filter(pl.col("detailed"))
            .group_by("launch", "block", "step")
            .agg(length=(pl.col("end_ns") - pl.col("begin_ns")).mean(), ranks=pl.len())
        )
        mean = lengths.filter(pl.col("ranks") == n)["length"].mean()
        for launch, block in _nearest(lengths.filter(pl.col("ranks") == n), mean):
            this = (pl.col("launch") == launch) & (pl.col("block") == block)
            here_alone = (own.filter(this), buckets.filter(this), within.blocks.filter(this))
            whole = [stamps for _, stamps in detailed_blocks(*here_alone, n, channels(within, plan))]
            if whole:
                found.append(Timeline(world_size=n, spans=_typical(whole[0], mean, ranks), drawn=some))
                break
    return tuple(found)


def _nearest(lengths: pl.DataFrame, mean: Any) -> list[tuple[int, int]]:
    """(launch, block) of all blocks, that of the step whose length is nearest to the mean first."""
    away = (pl.col("length") - mean).abs().min()
    each = lengths.group_by("launch", "block").agg(away=away).sort("away", "launch", "block")
    return each.select("launch", "block").rows()


def _drawn(steps: Frame, tables: Tables, plan: Plan, n: int) -> Drawn | None:
    """The ranks that are drawn, by their own steps. `steps`: detailed ones of `n` ranks."""
    own = (pl.col("end_ns") - pl.col("begin_ns") - WAITS).mean()
    means = in_memory(steps.group_by("rank").agg(own=own)).sort("rank")
    if means.height != n:  # then no block has all ranks, so none is drawn
        return None
    on = {file.rank: file.host for file in tables.ranks}
    hosts = [on.get(rank, plan.spec.topology.host_of(rank)) for rank in range(n)]
    return drawn(means["own"].to_numpy(), hosts)


def _typical(block: BlockStamps, mean: Any, ranks: Sequence[int]) -> tuple[Span, ...]:
    """Some ranks' step whose length is nearest to `mean`, ns."""
    lengths = (block.end - block.begin).mean(axis=1)
    return _spans(block, int(np.abs(lengths - mean).argmin()), ranks)


def _spans(stamps: BlockStamps, step: int, ranks: Sequence[int]) -> tuple[Span, ...]:
    origin = stamps.begin[step].min()
    merged = merge(stamps)
    busy = _union(list(zip(merged.begun[step], merged.finished[step], strict=True)))
    broadcasts = (stamps.buffer_begin, merged.buffer_skew, stamps.buffer_end)
    spans: list[Span] = []
    for rank in ranks:

        def add(
            lane: str, name: str, low: float, high: float, size: int | None = None, rank: int = rank
        ) -> None:
            if high > low:
                spans.append(
                    Span(
                        rank=rank,
                        lane=lane,
                        name=name,
                        begin_ms=round((low - origin) / 1e6, 4),
                        end_ms=round((high - origin) / 1e6, 4),
                        bytes=size,
                    )
                )

        begin = stamps.begin[step, rank]
        forward = begin + stamps.input[step, rank]
        backward = stamps.sync_end[step, rank] - stamps.backward[step, rank]
        compute_end, sync_end = stamps.compute_end[step, rank], stamps.sync_end[step, rank]
        optimizer_end = sync_end + stamps.optimizer[step, rank]
        add("compute", "input", begin, forward)
        going = forward
        for held, skew, gone in zip(*(b[step, rank] for b in broadcasts), strict=True):
            if (
                held >= forward and gone <= backward
            ):  # those of earlier micro-steps lie where no phase is drawn
                add("compute", "forward", going, held)
                add("compute", "exposed_skew", held, held + skew)
                add("compute", "exposed_transfer", held + skew, gone)
                going = gone
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
    return tuple(spans)


def _union(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged
