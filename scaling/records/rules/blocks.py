"""Rules of blocks: their own times and counts, and what the ranks say of the same block."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from scaling.records.frames import Frame, few, in_memory
from scaling.records.rules.broken import BLOCK, broken, unlike
from scaling.spec.cases import LATENCY, THROUGHPUT, TRAINING
from scaling.spec.schedule import BARE_ONE, FABRIC, PAIRS, REPLAY, STEP_ARMS

WAITED = 1.1
"""A thread's CPU time or waiting over the wall time of its block: the kernel counts both in ticks."""
TICK_NS = 50_000_000
FACTS = ["round", "world_size", "arm", "detailed", "solo_rank", "batch", "lead_in", "steps", "case"]
"""What all ranks record alike of a block."""
ARMS = (*STEP_ARMS, REPLAY, FABRIC, PAIRS, LATENCY, THROUGHPUT, TRAINING)


def of_blocks(blocks: Frame, slack: int) -> Iterator[pl.DataFrame]:
    """Blocks that break a rule; `slack`: of stamps on one clock, ns."""
    for some in few(blocks, ("launch", "rank")):
        yield from _of_ranks(some, slack)
    for some in few(blocks.select("launch", "rank", "block", *FACTS), ("launch", "block")):
        why = "its facts are not those that the other ranks recorded of it"
        yield from unlike(some, ["launch", "block"], FACTS, why)
    # A block of one rank is compared with the launch's others of its arm: only one of a few batches occurs.
    alone = in_memory(blocks.filter(pl.col("arm") == BARE_ONE).select(*BLOCK, *FACTS))
    rare = pl.len().over("launch", "world_size", "batch") == 1
    several = pl.col("round").n_unique().over("launch", "world_size") > 2
    yield from broken(alone, {"no other block of its arm has its batch": rare & several})


def _of_ranks(blocks: pl.DataFrame, slack: int) -> Iterator[pl.DataFrame]:
    """The rules that concern a rank's own blocks; `blocks`: all of some ranks."""
    wall = pl.col("end_ns") - pl.col("begin_ns")
    rules = {
        "it ends before it begins": pl.col("end_ns") <= pl.col("begin_ns"),
        "it has no time": (pl.col("host_begin_ns") <= 0),
        "its arm is not known": ~pl.col("arm").is_in(ARMS),
        "a count in it is negative, or it has no step": (pl.col("steps") < 1)
        | (pl.col("lead_in") < 0)
        | (pl.col("batch") < 0)
        | (pl.col("accumulation") < 1)
        | (pl.col("world_size") < 1),
        "its thread ran or waited for longer than it lasted": (pl.col("cpu_ns") < 0)
        | (pl.col("delayed_ns") < -1)
        | ~pl.col("thread_cpu_ns").is_between(0, wall * WAITED + TICK_NS)
        | (pl.col("delayed_ns") > wall * WAITED + TICK_NS),
        "it was recorded twice": pl.struct(BLOCK).is_duplicated(),
    }
    yield from broken(blocks, rules)
    in_order = (
        blocks.select(*BLOCK, "arm", "begin_ns", "end_ns")
        .sort("launch", "rank", "begin_ns", "block")
        .with_columns(
            before=pl.col("end_ns").shift(1).over("launch", "rank"),
            after=pl.col("begin_ns").shift(-1).over("launch", "rank"),
        )
    )
    overlapping = (pl.col("begin_ns") < pl.col("before") - slack) | (
        pl.col("end_ns") > pl.col("after") + slack
    )
    yield from broken(in_order, {"it overlaps with the rank's next block or the one before": overlapping})
