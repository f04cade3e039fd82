"""A probed training loop of one's own: which records are used, and the phases that it names.

A rank's own time in a phase that the loop names is what it does not wait there. A late rank is found in it as in whole
steps (decompose.stragglers), with the phase's own times in place of the step's: its cost is what the step would be
shorter by if ranks met behind the phase.
"""

from __future__ import annotations

import dataclasses

import polars as pl

from scaling.analysis.decompose.pauses import disturbed
from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.decompose.stragglers import FLOOR, Light, grids_of, late_ranks
from scaling.analysis.results import NamedPhase, Point, Verdict
from scaling.analysis.statistics.rounds import MS, Rounds, among
from scaling.records.format import generation
from scaling.records.tables import PUBLISHED, Tables, in_memory, of_launches
from scaling.settings.plan import Plan
from scaling.settings.schedule import BARE_ONE, PROBE
from scaling.units import UNKNOWN, ranks, two_digits

UPDATED_MOST = 0.6
"""A larger share of steps with an optimizer's step is that of a loop which skips some (a grad scaler)."""


def usable(tables: Tables, plan: Plan) -> Tables:
    """Blocks that every rank recorded completely, spread evenly over the loop, of launches with the plan's batch.

    A rank that evaluates, saves or fails drops its block, so the other ranks' copies of that block cannot be used. Nor
    are blocks with pauses or long steps that come back (decompose.pauses). If records were thinned out as the loop went
    on (scaling.records.format.generation), its denser beginning is thinned out in the same way, so that every part of
    the training has the same weight.
    """
    if others := _others(tables, plan):
        tables = of_launches(tables, tables.launches - others.keys())
    keys, steps = ["launch", "block"], pl.col("steps")
    alone = (pl.col("arm") == BARE_ONE).any().over(keys)
    alike = steps.min().over(keys) == steps.max().over(keys)
    blocks = in_memory(tables.blocks.select(*keys, "round", "rank", "arm", "steps"))
    together = blocks.filter(alone | ((pl.len().over(keys) == plan.ranks) & alike))
    together = together.join(disturbed(tables, plan), on=keys, how="anti")
    last = together.group_by("launch").agg(pl.col("round").max())
    every = {launch: 2 ** generation(slot) for launch, slot in last.iter_rows()}
    spacing = pl.col("launch").replace_strict(every, return_dtype=pl.Int64) if every else pl.lit(1)
    kept = together.filter((pl.col("round") < 0) | (pl.col("round") % spacing == 0)).select(keys).unique()
    ragged = tables.steps.lazy().join(together.select(keys).lazy(), on=keys, how="anti")
    return tables.having(
        {name: getattr(tables, name).lazy().join(kept.lazy(), on=keys, how="semi") for name in PUBLISHED},
        dropped_samples=tables.dropped_samples + in_memory(ragged.select(pl.len())).item(),
    )


def reached(points: tuple[Point, ...]) -> tuple[str, ...]:
    """How precisely the step is known at each world size, and from how many units."""
    return tuple(
        f"the step at {ranks(p.world_size)} is known to ±{two_digits(100 * p.step_ms.half_width / p.step_ms.value)} % "
        f"from {p.step_ms.n} stretches of the loop"
        if p.step_ms.tells
        else f"the step at {ranks(p.world_size)} is {UNKNOWN}: {p.step_ms.n} stretches of the loop were too uneven"
        for p in points
        if p.step_ms is not None and p.step_ms.half_width is not None
    )


def other_batches(tables: Tables, plan: Plan) -> tuple[str, ...]:
    """A warning for each launch in the same folder that trained with another batch and is not counted."""
    return tuple(
        f"launch {launch} is not counted: it trained with {batch} samples per rank and step, the last launch with "
        f"{plan.trials[0].batch}"
        for launch, batch in sorted(_others(tables, plan).items())
    )


def _others(tables: Tables, plan: Plan) -> dict[int, int]:
    """Launch -> batch, for launches whose batch is not the plan's (the last launch's)."""
    batches = in_memory(tables.blocks.select("launch", "batch").unique()).rows()
    return {launch: batch for launch, batch in batches if batch != plan.trials[0].batch}


def updates(tables: Tables, plan: Plan) -> tuple[str, ...]:
    """A warning where an optimizer steps in a part of the steps only: each `step()` was one micro-step that reduced."""
    looked_at = (pl.col("arm") == PROBE) & (pl.col("rank") == 0) & (pl.col("round") >= 0)
    steps = in_memory(tables.steps.filter(looked_at))
    updated = steps.filter(pl.col("optimizer_ns") > 0).height
    if not plan.kind.followed or not updated or updated > UPDATED_MOST * steps.height:
        return ()
    return (
        f"an optimizer stepped in {updated} of {steps.height} steps that were looked at, and gradients were reduced in "
        "all: put ddp.no_sync() around those that only accumulate (after fully_shard: "
        "set_requires_gradient_sync(False) before them); they then count as micro-steps of one step",
    )


def in_code(verdict: Verdict) -> Verdict:
    """The verdict without overrides of `scaling run`, which a loop of one's own cannot take."""
    tried = (dataclasses.replace(remedy, overrides="") for remedy in verdict.try_ if remedy.code)
    return dataclasses.replace(verdict, try_=tuple(tried))


def read_named(tables: Tables, n: int) -> dict[str, Light]:
    """By name, in the order of first use: what ranks do and wait in a phase, as the mean over a block's steps.

    A rank that does not enter a phase takes 0 in it.
    """
    light = (pl.col("arm") == PROBE) & ~pl.col("detailed") & (pl.col("round") >= 0)
    loop = tables.blocks.filter(light & (pl.col("world_size") == n) & (pl.col("rank") < n))
    blocks = in_memory(loop.select("launch", "round", "block", "rank", "steps"))
    keys = ["launch", "block", "rank"]
    sound = (pl.col("wait_ns") >= 0) & (pl.col("ns") >= pl.col("wait_ns"))
    rows = in_memory(tables.phases.filter(sound)).join(blocks, on=keys, how="semi")
    took, waited = (pl.col(name).fill_null(0) / pl.col("steps") for name in ("ns", "wait_ns"))
    named: dict[str, Light] = {}
    for (name,), part in rows.partition_by("name", as_dict=True, maintain_order=True).items():
        whole = blocks.join(part, on=keys, how="left").with_columns(step=0)
        if grids := grids_of(whole, n, {"own": took - waited, "waited": waited}):
            named[str(name)] = Light(
                own_ns={key: grid["own"] for key, grid in grids},
                waited={key: grid["waited"].mean(axis=0) for key, grid in grids},
                alike={},
            )
    return named


def phases(records: TrialRecords, rounds: Rounds, floor: float, least_ns: float) -> tuple[NamedPhase, ...]:
    """Every named phase. `floor`: as `late_ranks` has it. A late rank costs more than `least_ns`.

    With more phases, one of them shows a late rank by chance more often, so intervals hold for all of them at once.
    """
    step, results = rounds.measure("plain"), []
    bar = max(least_ns, FLOOR * step.value) if step else least_ns
    for name, light in records.named.items():
        computed, waits = (
            records.per_round({key: float(each.mean()) for key, each in of_rounds.items()})
            for of_rounds in (light.own_ns, light.waited)
        )
        grown = rounds.extend({"named": computed + waits, "named.waits": waits})
        took, waited = grown.measure("named", scale=MS), grown.measure("named.waits", scale=MS)
        if took is None or waited is None:
            continue
        here = dataclasses.replace(records, light=light, cycles=())
        late = late_ranks(here, rounds, floor)
        if late is not None and not among(late.cost_ns, len(records.named)).surely_above(bar):
            late = None
        results.append(
            NamedPhase(
                name=name,
                ms=took,
                waits_ms=waited,
                late_rank=late.ranks[0] if late else None,
                late_ms=late.cost_ns * MS if late else None,
            )
        )
    return tuple(results)
