"""How much ranks differ in a step's compute, from arms without communication."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from scaling.analysis.decompose.quantities import DURATIONS
from scaling.analysis.statistics.rounds import Floats
from scaling.records.frames import in_memory
from scaling.records.tables import Tables
from scaling.spec.schedule import BARE_ALL, DDP_SOLO
from scaling_simulator.simulate.inputs import Range

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
    own = solo.with_columns([e for e in DURATIONS if e.meta.output_name() in ("forward", "compute")])
    place = ["launch", "round", "block", "step"]
    each = in_memory(
        own.group_by(*place).agg(
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
