"""What a run's arms give a simulation: a rank's step alone, and what ranks cost each other.

How much ranks differ in a step's compute, from arms without communication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
import polars as pl

from scaling.analysis.decompose.quantities import DURATIONS
from scaling.analysis.results import Point
from scaling.analysis.statistics.rounds import Floats
from scaling.records.tables import Tables, in_memory
from scaling.settings.schedule import BARE_ALL, DDP_SOLO
from scaling.settings.topology import Topology
from scaling_simulator.simulate.ask import Range

MEDIAN = 1.2533
"""Standard error of a median over a mean's, for normal values."""


def spread_of(tables: Tables) -> tuple[Range, Range] | None:
    """How much ranks differ in a step's compute, in arms without communication: (what lasts the step, what does not).

    A rank that is slow for a whole step is so in forward and in backward: with F and B their mean times, its share of
    the variance is s^2 with cov(forward, backward) = s^2 F B over ranks of a step. What is left of the variance of both
    together, V - s^2 (F + B)^2, is a walk w^2 (F + B). What slows all ranks at once is in neither. Covariances are
    averaged in each block, blocks count by their median; the interval is two standard errors over blocks.
    Units: s relative, w in ns ** 0.5.
    """
    solo = tables.steps.filter(pl.col("arm").is_in([DDP_SOLO, BARE_ALL]) & (pl.col("world_size") > 1))
    largest = in_memory(solo.select(pl.col("world_size").max())).item()
    if largest is None:
        return None
    solo = solo.filter(pl.col("world_size") == largest)
    timed = solo.with_columns([e for e in DURATIONS if e.meta.output_name() in ("forward", "compute")])
    place = ["launch", "round", "block", "step"]
    each = in_memory(
        timed.group_by(*place).agg(
            forward=pl.col("forward").mean(),
            backward=pl.col("compute").mean(),
            together=pl.cov("forward", "compute"),
            var=(pl.col("forward") + pl.col("compute")).var(),
            ranks=pl.col("rank").n_unique(),
        )
    )
    each = each.filter((pl.col("ranks") > 1) & (pl.col("forward") > 0) & (pl.col("backward") > 0))
    if each.is_empty():
        return None
    whole = pl.col("forward") + pl.col("backward")
    lasting = pl.col("together") / (pl.col("forward") * pl.col("backward"))
    blocks = (
        each.with_columns(lasting=lasting, total=pl.col("var") / whole**2, whole=whole)
        .group_by("launch", "round", "block")
        .agg(pl.col("lasting", "total", "whole").mean())
    )
    step_ns = float(np.median(blocks["whole"].to_numpy()))
    kept = np.clip(blocks["lasting"].to_numpy(), 0.0, blocks["total"].to_numpy())
    return _root(kept, 1.0), _root(blocks["total"].to_numpy() - kept, step_ns)


def _root(variances: Floats, scale: float) -> Range:
    """Square root of the median variance, times the root of `scale`, with two standard errors over blocks."""
    value = float(np.median(variances))
    error = (
        2 * MEDIAN * float(np.std(variances, ddof=1)) / math.sqrt(len(variances))
        if len(variances) > 1
        else value
    )
    low, high = max(0.0, value - error), value + error
    return Range(value=math.sqrt(value * scale), low=math.sqrt(low * scale), high=math.sqrt(high * scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class BetweenRanks:
    """What makes ranks slower than one alone; None: the run does not say it of the machine that is asked for."""

    slowdown: Range | None
    """Of kernels while communication runs."""
    spread: tuple[Range, Range] | None
    neighbours: Range | None


def between_ranks(
    points: Sequence[Point], tables: Tables, home: Topology, asked: Topology, *, elsewhere: bool
) -> BetweenRanks:
    """What a run on `home` says of `asked`; `elsewhere`: that has other devices.

    What ranks of a CPU cost each other is not taken for an accelerator, nor what one back end's transfers cost kernels
    for another's, nor what neighbours do where another number of ranks shares a host. A back end of the host's, Gloo,
    takes processor time for each byte, so kernels are slowed in proportion to the rate at which bytes go.
    """
    foreign = elsewhere and home.device == "cpu"
    crowded = not elsewhere and asked.ranks_per_host == home.ranks_per_host
    slower = None if foreign or asked.backend != home.backend else slowdown(points)
    if slower is not None and home.backend == "gloo" and home.link.rate_bit_s and asked.link.rate_bit_s:
        slower = slower.times(asked.link.rate_bit_s / home.link.rate_bit_s)
    return BetweenRanks(
        slowdown=slower,
        spread=None if foreign else spread_of(tables),
        neighbours=neighbours(points) if crowded else None,
    )


def alone_ns(points: Sequence[Point]) -> float | None:
    """The step of one rank alone, mean over the world sizes beside which it was measured; None where it was not."""
    steps_ms = [p.arms_ms.bare_one.value for p in points if p.arms_ms and p.arms_ms.bare_one]
    return mean(steps_ms) * 1e6 if steps_ms else None


def neighbours(points: Sequence[Point]) -> Range | None:
    """By how much a step of bare compute is longer where all ranks are at work, at the largest world size.

    The share that the waterfall has is (bare_all - bare_one) / plain, paired in each round; this is the same over
    bare_one. None where the arms were left out.
    """
    for point in sorted(points, key=lambda p: -p.world_size):
        arms, loss = point.arms_ms, point.loss
        if point.world_size < 2 or arms is None or loss is None:
            continue
        if arms.bare_one is None or arms.plain is None or loss.neighbours is None:
            continue
        share, over = loss.neighbours, arms.plain.value / arms.bare_one.value
        ends = [share.value if end is None else end for end in (share.low, share.high)]
        return Range(value=share.value * over, low=ends[0] * over, high=ends[1] * over)
    return None


def slowdown(points: Sequence[Point]) -> Range | None:
    """s, where kernels take 1 + s times as long under communication: h of hidden transfer then costs h s / (1 + s)."""
    for point in reversed(points):
        if (
            point.loss is None
            or point.loss.overlap is None
            or point.arms_ms is None
            or point.arms_ms.plain is None
        ):
            continue
        comm = point.comm
        if comm is None or comm.hidden_share is None or not comm.buckets:
            continue
        busy = sum(b.transfer_ms.value for b in comm.buckets if b.transfer_ms is not None)
        hidden = comm.hidden_share.value * busy
        if hidden <= 0:
            continue
        overlap, plain = point.loss.overlap, point.arms_ms.plain.value

        def of(share: float | None, default: float, hidden: float = hidden, plain: float = plain) -> float:
            extra = max(0.0, (default if share is None else share) * plain)
            return extra / max(hidden - extra, 0.2 * hidden)

        value = of(overlap.value, overlap.value)
        return Range(value=value, low=of(overlap.low, overlap.value), high=of(overlap.high, overlap.value))
    return None
