"""Choose the launches that a trial's numbers come from. Pure.

Arms are compared within a launch, so that differences between launches (time of day, hosts, process start) do not
appear as a loss. A trial is therefore read from the launches that measured it completely. If there is none, it is read
from launches that were cut off but have complete rounds; and if no round is complete, from the launch with most blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import polars as pl

from scaling.records.frames import Frame, in_memory
from scaling.records.tables import Tables
from scaling.spec.plan import Plan, Trial
from scaling.spec.schedule import BARE_ONE, PAIRS, PLAIN, arms_of

OWN_KINDS = 3
"""Kinds of blocks in a round of an own loop: plain, with phase stamps, and with phase stamps and buckets."""


def counted(tables: Tables, plan: Plan, trial: Trial) -> frozenset[int]:
    """Launches that count for a trial; empty if it was not measured at all."""
    n = trial.world_size
    facts = ["launch", "round", "arm", "detailed", "batch"]
    here = (pl.col("world_size") == n) & ~pl.col("arm").is_in([BARE_ONE, PAIRS]) & (pl.col("rank") < n)
    own = in_memory(tables.blocks.filter(here).group_by(facts).agg(ranks=pl.len()))
    own = own.filter((pl.col("arm") == PLAIN).any().over("launch"))
    measured = own["launch"].unique().to_list()
    whole = [launch for launch in measured if _ended(tables, launch)]
    if whole:
        return frozenset(whole)
    if plan.own_loop:
        rounds, kinds = own.filter(pl.col("round") >= 0), OWN_KINDS  # its baseline has rounds of its own
    else:
        batches = {t.batch for t in (trial, *plan.baseline((trial,)))}
        of_batches = (pl.col("arm") == BARE_ONE) & pl.col("batch").is_in(list(batches))
        alone = in_memory(tables.blocks.filter(of_batches).select(facts).unique())
        rounds, kinds = (
            pl.concat([own.select(facts), alone]),
            len(set(arms_of(n, plan.content))) + len(batches),
        )
    found = rounds.group_by("launch", "round").agg(arms=pl.struct("arm", "detailed", "batch").n_unique())
    full = set(found.filter(pl.col("arms") == kinds)["launch"]) & set(measured)
    most = own.group_by("launch").agg(pl.col("ranks").sum()).sort("ranks", "launch")["launch"].tail(1)
    return frozenset(full or most)


def of_launches(tables: Tables, launches: frozenset[int]) -> Tables:
    """The records of some launches; the same object if these are all of them."""
    known = {rank.launch for rank in tables.ranks} | {
        gap.launch for gap in tables.gaps if gap.rank is not None
    }
    if launches >= known | tables.launches:
        return tables
    chosen = pl.col("launch").is_in(sorted(launches))
    return replace(
        tables,
        blocks=tables.blocks.filter(chosen),
        steps=tables.steps.filter(chosen),
        buckets=tables.buckets.filter(chosen),
        fabric=tables.fabric.filter(chosen),
        ranks=tuple(rank for rank in tables.ranks if rank.launch in launches),
        gaps=tuple(gap for gap in tables.gaps if gap.launch in launches or gap.rank is None),
        parts=tuple(part for part in tables.parts if part.launch in launches),
    )


def span_ns(blocks: Frame) -> int:
    """The sum over launches of the time from the first block to the last; time between launches does not count."""
    return int(_spans(blocks)["ns"].sum())


def before_ns(blocks: Frame) -> pl.DataFrame:
    """(launch, before_ns): total span of the launches before each one, since stamps of two launches share no clock."""
    spans = _spans(blocks).sort("launch")
    return spans.select("launch", before_ns=pl.col("ns").cum_sum() - pl.col("ns"))


def _spans(blocks: Frame) -> pl.DataFrame:
    """(launch, ns): from its first block to its last, on the clock of its own rank 0."""
    return in_memory(blocks.group_by("launch").agg(ns=pl.col("end_ns").max() - pl.col("begin_ns").min()))


def said(counted: Mapping[int, Collection[int]], tables: Tables) -> tuple[str, ...]:
    """Warnings where the trials do not all come from the same launches, or where a launch is not counted."""
    used = {launch for launches in counted.values() for launch in launches}
    lines = []
    if len({frozenset(launches) for launches in counted.values() if launches}) > 1:
        of = "; ".join(f"{n}: {_list(launches)}" for n, launches in counted.items() if launches)
        lines.append(
            f"world sizes were measured in different launches ({of}), and the intervals do not cover what changes "
            "from launch to launch"
        )
    unused = tables.launches - used
    if unused and used:
        whole = all(_ended(tables, launch) for launch in used)
        why = (
            f"launch {_list(used)} measured the same trials whole"
            if whole
            else "other launches measured more of the same trials"
        )
        lines.append(f"launch {_list(unused)} was cut off and is not counted: {why}")
    return tuple(lines)


def _ended(tables: Tables, launch: int) -> bool:
    """Whether every rank of a launch wrote its records to the end; an own loop may also end with an exception."""
    files = {rank.rank: rank for rank in tables.ranks if rank.launch == launch}
    world = max((file.world for file in files.values()), default=0)
    return bool(files) and all(
        rank in files and (files[rank].ended or files[rank].state is not None) and not files[rank].cut_off
        for rank in range(max(world, len(files)))
    )


def _list(launches: Collection[int]) -> str:
    return ", ".join(map(str, sorted(launches)))
