"""Leave out blocks that cannot be: what is missing on one rank, or what time does not allow, goes on all ranks.

Pure. The rules are in records.rules (what a record says) and records.complete (what is not there). A block is the
unit, because its steps are averaged before anything else is done with them.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import polars as pl

from scaling.records import complete, rules
from scaling.records.collect import Look, collect
from scaling.records.complete import NAMED, PLACE
from scaling.records.paths import RunFolder
from scaling.records.ranks import Gap
from scaling.records.tables import Tables, without_blocks
from scaling.spec.plan import Plan

LINES = 12
"""Lines for each launch."""


def read_checked(folder: RunFolder, plan: Plan) -> Tables:
    """A run's rank files as tables, without the blocks that fail a rule; rows are looked at while others are read.

    A gap says which blocks they are, on which rank, and why.
    """
    broken: list[pl.DataFrame] = []
    tables = collect(folder, plan, Look(partial(rules.broken_rows, plan), broken.append))
    failed = pl.concat([*broken, rules.overlapping(plan, tables.blocks)]).unique()
    failed = failed.sort("launch", "rank", "block", "why")
    blocks, gaps, missing = failed.select(PLACE).unique(), list[Gap](), 0
    left_out = blocks.height
    if not plan.own_loop:  # a rank of an own loop gives a block up when the loop does something else
        ragged, gaps, missing = complete.found(tables)
        blocks = pl.concat([blocks, ragged]).unique()
    kept = without_blocks(tables, blocks) if blocks.height else tables
    gaps = [*tables.gaps, *_said(failed), *gaps]
    return dataclasses.replace(kept, gaps=tuple(gaps), dropped_blocks=left_out + missing)


def _said(failed: pl.DataFrame) -> list[Gap]:
    """A line for each launch, rank and reason, with the first blocks' numbers and arms."""
    gaps = []
    for launch, part in sorted(failed.partition_by("launch", as_dict=True).items()):
        groups = (
            part.unique(["rank", "block", "why"])
            .sort("block")
            .group_by("rank", "why", maintain_order=True)
            .agg("block", "arm")
            .sort("rank", "why")
        )
        for rank, why, blocks, arms in groups.head(LINES).iter_rows():
            named = ", ".join(f"{b} ({arm})" for b, arm in list(zip(blocks, arms, strict=True))[:NAMED])
            more = f" and {len(blocks) - NAMED} more" if len(blocks) > NAMED else ""
            plural = "blocks" if len(blocks) > 1 else "block"
            what = f"says in {plural} {named}{more} what cannot be: {why}; left out on all ranks"
            gaps.append(Gap(launch=int(launch[0]), rank=rank, what=what))
        if groups.height > LINES:
            more = f"says more in {groups.height - LINES} other places that cannot be; left out on all ranks"
            gaps.append(Gap(launch=int(launch[0]), what=more))
    return gaps
