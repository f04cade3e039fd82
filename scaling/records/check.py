"""Leave out blocks that cannot be, and say which are missing. Pure, but for `read_checked`.

What is missing on one rank, or what time does not allow, goes on all ranks. What a record may say is in records.rules.
A block is the unit, because its steps are averaged before anything else is done with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import polars as pl

from scaling.errors import InputError
from scaling.records import rules
from scaling.records.collect import collect
from scaling.records.frames import in_memory
from scaling.records.paths import RunFolder
from scaling.records.rank_file import Gap, RankFile
from scaling.records.tables import Tables, without_blocks
from scaling.settings.parallel import MeshError
from scaling.settings.plan import Plan
from scaling.settings.schedule import BARE_ONE, PAIRS

NAMED = 5
"""Blocks that a line names; it counts the others."""
PLACE = ["launch", "block"]


def missing_blocks(tables: Tables) -> tuple[pl.DataFrame, list[Gap], int]:
    """(launch, block) of blocks that some rank lacks; what is said of missing ones; how many are missing.

    Ranks that left no file at all are said elsewhere, and the others' blocks are then kept. The last blocks of a launch
    that was cut off are not on all ranks; they go, and nothing is said of them here.
    """
    files_of: dict[int, list[RankFile]] = {}
    for file in tables.ranks:
        files_of.setdefault(file.launch, []).append(file)
    ended = [
        launch
        for launch, files in files_of.items()
        if all(file.ended for file in files) and len(files) >= max(file.world for file in files)
    ]
    whole = pl.col("launch").is_in(sorted(ended))
    ragged = _ragged(tables)
    gaps, missing = _rank_gaps(ragged.filter(whole))
    read = in_memory(tables.blocks.group_by("launch", "rank").agg(len=pl.len()))
    counts = {(launch, rank): count for launch, rank, count in read.iter_rows()}
    for file in tables.ranks:
        lacking = (file.blocks or 0) - counts.get((file.launch, file.rank), 0) - len(file.damaged)
        if lacking > 0 and not any((gap.launch, gap.rank) == (file.launch, file.rank) for gap in gaps):
            what = f"lacks {_blocks(lacking)} of the {file.blocks} that it wrote"
            gaps.append(Gap(launch=file.launch, rank=file.rank, what=what))
            missing = max(missing, lacking)
    damaged = sum(len(file.damaged) for file in tables.ranks)
    return ragged.select(PLACE).unique(), gaps, max(missing, damaged)


def _ragged(tables: Tables) -> pl.DataFrame:
    """(launch, block, world_size, arm, rank) for each rank that lacks a block which another rank of its group has."""
    kind = ["launch", "world_size", "arm"]
    of_several = tables.blocks.filter(~pl.col("arm").is_in([BARE_ONE, PAIRS]))
    shared = in_memory(of_several.select(*kind, "block", "rank"))
    files = pl.DataFrame(
        [(file.launch, file.rank) for file in tables.ranks],
        schema={"launch": pl.Int64, "rank": pl.Int64},
        orient="row",
    )
    kinds = shared.select(kind).unique()
    first = kinds.join(files, on="launch").filter(pl.col("rank") < pl.col("world_size"))
    members = shared.select(*kind, "rank").unique()
    members = pl.concat([members, first.select(*kind, "rank")]).unique()
    everybody = members.group_by(kind).len("all")
    present = shared.group_by(*kind, "block").agg(present=pl.col("rank").n_unique())
    ragged = present.join(everybody, on=kind).filter(pl.col("present") < pl.col("all"))
    wanted = ragged.select(*kind, "block").join(members, on=kind)  # of the few blocks that are ragged
    absent = wanted.join(shared, on=["launch", "block", "rank"], how="anti")
    return absent.select(*kind, "rank", "block").sort("launch", "rank", "block")


def _rank_gaps(ragged: pl.DataFrame) -> tuple[list[Gap], int]:
    """A line for each rank that lacks blocks."""
    gaps = []
    for launch, rank, blocks, arms in (
        ragged.group_by("launch", "rank", maintain_order=True).agg("block", "arm").iter_rows()
    ):
        lacking = f"{_blocks(len(blocks))} that other ranks have: {_first(blocks, arms)}"
        what = f"lacks {lacking}; left out on all ranks"
        gaps.append(Gap(launch=launch, rank=rank, what=what))
    return gaps, ragged.select(PLACE).unique().height


def _blocks(count: int) -> str:
    return f"{count} block{'s' * (count != 1)}"


def _first(blocks: Sequence[int], arms: Sequence[str]) -> str:
    """The first blocks with their arms, and how many others."""
    named = [f"{block} ({arm})" for block, arm in zip(blocks, arms, strict=True)]
    return ", ".join(named[:NAMED]) + (f" and {len(named) - NAMED} more" if len(named) > NAMED else "")


LINES = 12
"""Lines for each launch."""


def read_checked(folder: RunFolder, plan: Plan) -> Tables:
    """A run's rank files as tables, without the blocks that fail a rule; rows are looked at while others are read.

    A gap says which blocks they are, on which rank, and why.
    """
    tables, broken = collect(folder, plan, partial(rules.broken_rows, plan))
    failed = pl.concat([*broken, rules.overlapping(plan, tables.blocks)]).unique()
    failed = failed.sort("launch", "rank", "block", "why")
    blocks, gaps, missing = failed.select(PLACE).unique(), list[Gap](), 0
    left_out = blocks.height
    if not plan.kind.followed:  # a rank of an own loop gives a block up when the loop does something else
        ragged, gaps, missing = missing_blocks(tables)
        blocks = pl.concat([blocks, ragged]).unique()
    kept = without_blocks(tables, blocks) if blocks.height else tables
    gaps = [*tables.gaps, *_rule_gaps(failed), *gaps]
    return dataclasses.replace(kept, gaps=tuple(gaps), dropped_blocks=left_out + missing)


def _rule_gaps(failed: pl.DataFrame) -> list[Gap]:
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
            plural = "blocks" if len(blocks) > 1 else "block"
            what = f"says in {plural} {_first(blocks, arms)} what cannot be: {why}; left out on all ranks"
            gaps.append(Gap(launch=int(launch[0]), rank=rank, what=what))
        if groups.height > LINES:
            more = f"says more in {groups.height - LINES} other places that cannot be; left out on all ranks"
            gaps.append(Gap(launch=int(launch[0]), what=more))
    return gaps


def check_meshes(plan: Plan, where: object) -> None:
    """InputError where the degrees of plan.json do not fit a world size that was measured; `where`: the file."""
    for strategy in plan.spec.strategies:
        for trial in plan.trials:
            try:
                strategy.parallel.mesh(trial.world_size)
            except MeshError as error:
                raise InputError(f"{where}: parallel={strategy.parallel.name}: {error}") from error
