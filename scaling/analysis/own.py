"""What differs where somebody's own loop was probed: which records are used, and which of them are independent.

The rounds of `scaling run` are apart in time and their arms in random order, so a round is a unit of
resampling. A loop's steps follow one another, and so do its rounds: what slows one down (another
program, a longer sentence, a warmer chip) often slows the next one too, and intervals over single
rounds would be too narrow. So rounds are taken together, twice as many at a time, until the means of
the units no longer follow one another (batch means; A. M. Law, Simulation Modeling and Analysis,
5th ed., section 9.5.3), or only UNITS_ENOUGH would be left.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scaling.analysis.launches import of_launches
from scaling.analysis.quantities import TrialRecords
from scaling.analysis.results import Point, Verdict
from scaling.analysis.stats import Floats, Rounds
from scaling.collect import Tables
from scaling.plan import Plan
from scaling.records import BARE_ONE, PLAIN, generation
from scaling.spec import Spec
from scaling.units import format_duration

UNITS_ENOUGH = 10
"""Rounds are not taken together to fewer units than this."""
FOLLOWS = 1.0
"""Times 1/sqrt(units), the standard error of a lag-1 autocorrelation that is none: more, and units do follow
one another. Below the usual 1.96, since taking too many together costs little and too few costs the truth."""


def usable(tables: Tables, plan: Plan) -> Tables:
    """Blocks that every rank has whole, of rounds that lie evenly over the loop, of trainings with the plan's batch.

    A rank that evaluates, saves or fails gives its block up, and so that block is of no use on the
    others. Where records were thinned out as the loop went on (records.generation), its dense
    beginning is thinned out alike, so that no part of the training weighs more than another.
    """
    if others := _others(tables, plan):
        tables = of_launches(tables, frozenset(tables.blocks["launch"].unique()) - others.keys())
    world_size, blocks = plan.ranks, tables.blocks
    whole = (
        blocks.filter(pl.col("arm") != BARE_ONE)
        .group_by("launch", "block")
        .agg(ranks=pl.len(), fewest=pl.col("steps").min(), most=pl.col("steps").max())
        .filter((pl.col("ranks") == world_size) & (pl.col("fewest") == pl.col("most")))
        .select("launch", "block")
    )
    alone = blocks.filter(pl.col("arm") == BARE_ONE).select("launch", "block")
    keys = ["launch", "block"]
    together = blocks.join(pl.concat([whole, alone]).unique(), on=keys, how="semi")
    last = together.group_by("launch").agg(pl.col("round").max())
    every = {launch: 2 ** generation(slot) for launch, slot in last.iter_rows()}
    spacing = pl.col("launch").replace_strict(every, return_dtype=pl.Int64) if every else pl.lit(1)
    kept = together.filter((pl.col("round") < 0) | (pl.col("round") % spacing == 0)).select(keys).unique()
    ragged = tables.steps.join(together.select(keys).unique(), on=keys, how="anti").height
    return dataclasses.replace(
        tables,
        blocks=blocks.join(kept, on=keys, how="semi"),
        steps=tables.steps.join(kept, on=keys, how="semi"),
        buckets=tables.buckets.join(kept, on=keys, how="semi"),
        fabric=tables.fabric.join(kept, on=keys, how="semi"),
        parameters=tables.parameters.join(kept, on=keys, how="semi"),
        dropped_samples=tables.dropped_samples + ragged,
    )


def independent(values: dict[str, Floats], records: TrialRecords, spec: Spec) -> Rounds:
    """A trial's rounds, and which of them are drawn together."""
    if not spec.own_loop:
        return Rounds(values, records.launches, seed=spec.seed)
    unit = units(values[PLAIN], records.launches)
    alone = np.arange(len(unit)) + len(unit)
    baseline = records.baseline
    return Rounds(
        values,
        records.launches,
        seed=spec.seed,
        unit=np.unique(np.where(baseline, alone, unit), return_inverse=True)[1],
        part=baseline.astype(np.int64),
    )


def units(values: Floats, launch: NDArray[np.int64]) -> NDArray[np.int64]:
    """The unit of each round, from one value a round in the order of time (NaN: none).

    Units of a launch lie within it. `values`: the step's mean, ns.
    """
    size = 1
    while _count(values, launch, size * 2) >= UNITS_ENOUGH and _follow(values, launch, size):
        size *= 2
    return _grouped(launch, size)


def reached(points: tuple[Point, ...]) -> tuple[str, ...]:
    """How well the step is known, and from what."""
    return tuple(
        f"the step at {p.world_size} ranks is known to ±{100 * p.step_ms.half_width / p.step_ms.value:.2g} % "
        f"from {p.step_ms.n} stretches of the loop"
        for p in points
        if p.step_ms is not None and p.step_ms.half_width is not None
    )


def said(tables: Tables, plan: Plan) -> tuple[str, ...]:
    """Trainings into the same folder that were another one: a step of theirs says nothing of this one's."""
    return tuple(
        f"launch {launch} is not counted: it trained with {batch} samples a rank and step, the last one with "
        f"{plan.trials[0].batch}"
        for launch, batch in sorted(_others(tables, plan).items())
    )


def _others(tables: Tables, plan: Plan) -> dict[int, int]:
    """Launches of another batch than the plan's, which is the last one's, and theirs."""
    found = tables.blocks.select("launch", "batch").unique().rows()
    return {launch: batch for launch, batch in found if batch != plan.trials[0].batch}


def pauses(tables: Tables) -> tuple[str, ...]:
    """What lay between two steps and was not taken for input."""
    longest = max((rank.paused_ns for rank in tables.ranks), key=sum, default=())
    if not longest:
        return ()
    pauses = "1 pause" if len(longest) == 1 else f"{len(longest)} pauses"
    return (
        f"{pauses} between two steps (evaluation, saving), {format_duration(sum(longest) / 1e9)} in all: "
        "not counted as part of a step",
    )


def in_code(verdict: Verdict) -> Verdict:
    """What to try without the overrides of `scaling run`, which a loop of one's own does not take."""
    tried = (dataclasses.replace(remedy, overrides="") for remedy in verdict.try_ if remedy.code)
    return dataclasses.replace(verdict, try_=tuple(tried))


def _grouped(launch: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """`size` consecutive rounds of a launch to a unit; what is left over at its end joins the last one."""
    found = np.zeros(len(launch), dtype=np.int64)
    first = 0
    for one in np.unique(launch):
        rounds = np.flatnonzero(launch == one)
        count = max(1, len(rounds) // size)
        found[rounds] = first + np.minimum(np.arange(len(rounds)) // size, count - 1)
        first += count
    return found


def _means(values: Floats, launch: NDArray[np.int64], size: int) -> Floats:
    of = _grouped(launch, size)
    there = np.isfinite(values)
    total = np.bincount(of[there], weights=values[there], minlength=of.max(initial=0) + 1)
    count = np.bincount(of[there], minlength=of.max(initial=0) + 1)
    means: Floats = total[count > 0] / count[count > 0]
    return means


def _count(values: Floats, launch: NDArray[np.int64], size: int) -> int:
    return len(_means(values, launch, size))


def _follow(values: Floats, launch: NDArray[np.int64], size: int) -> bool:
    """Whether the means of units of so many rounds are autocorrelated."""
    means = _means(values, launch, size)
    away = means - means.mean()
    spread = float(away @ away)
    return spread > 0 and float(away[1:] @ away[:-1]) / spread > FOLLOWS / len(means) ** 0.5
