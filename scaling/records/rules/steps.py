"""Rules of steps: all are there, inside their block and one after the other, and their phases fit into them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from scaling.records.frames import in_memory
from scaling.records.rules.broken import BLOCK, STEP, broken, together
from scaling.records.rules.runs import runs
from scaling.records.tables import Tables
from scaling.spec.cases import THROUGHPUT, TRAINING
from scaling.spec.plan import Plan
from scaling.spec.schedule import PLAIN, PROBE, VARIANT

TOGETHER = (PLAIN, PROBE, VARIANT, TRAINING)
"""Arms in which every step synchronises the ranks of its group."""
SHARED = ["launch", "block", "step"]
"""Rows of one step."""


def of_steps(tables: Tables, steps: pl.DataFrame, plan: Plan, slack: int) -> Iterator[pl.DataFrame]:
    """Steps, and blocks by their steps, that break a rule; `tables`: with the blocks. `slack`: ns."""
    each = runs(steps, STEP)
    steps = each.frame
    of_block = runs(steps, BLOCK)
    number, begin_ns = steps["step"].to_numpy(), steps["begin_ns"].to_numpy()
    by_block = of_block.table(
        rows=of_block.lengths,
        different=each.inside(of_block),
        last=of_block.most(number),
        first=of_block.least(number),
        first_ns=of_block.least(begin_ns),
        last_ns=of_block.most(steps["end_ns"].to_numpy()),
    )
    follows = np.ones(steps.height, dtype=bool)
    follows[of_block.begins] = False
    whole = (
        in_memory(tables.blocks)
        .join(by_block, on=BLOCK, how="left")
        .with_columns(pl.col("rows").fill_null(0))
    )
    at_once = (pl.col("arm") == THROUGHPUT) & (pl.col("rows") == 1)
    rules = {
        "not all of its steps are there": ((pl.col("rows") != pl.col("steps")) & ~at_once)
        | (pl.col("different") != pl.col("rows"))
        | (pl.col("first") != 0)
        | (pl.col("last") != pl.col("rows") - 1)
    }
    if not plan.own_loop:  # there the device may still run when the block's own times are taken
        rules["its steps lie outside of it"] = (pl.col("first_ns") < pl.col("begin_ns") - slack) | (
            pl.col("last_ns") > pl.col("end_ns") + slack
        )
    yield from broken(whole, rules)
    length, wait = pl.col("end_ns") - pl.col("begin_ns"), pl.col("sync_end_ns") - pl.col("compute_end_ns")
    phases = pl.sum_horizontal("input_ns", "forward_ns", "backward_ns", "optimizer_ns")
    buffered = pl.col("buffer_end_ns") - pl.col("buffer_begin_ns")
    before = pl.col("begin_ns") + pl.col("input_ns") + pl.col("forward_ns") + pl.col("backward_ns")
    stamped = pl.col("compute_end_ns").is_not_null()
    of_steps = {
        "a step ends before it begins": length <= 0,
        "a step begins before the one before it ends": pl.lit(pl.Series(follows))
        & (pl.col("begin_ns") < pl.col("end_ns").shift(1) - slack),
        "a part of a step is negative": pl.min_horizontal(
            "input_ns",
            "forward_ns",
            "backward_ns",
            "optimizer_ns",
            "earlier_wait_ns",
            "buffer_wait_ns",
            "forward_wait_ns",
            "backward_wait_ns",
        )
        < -slack,
        "the parts of a step are longer than the step": stamped & (phases > length + slack),
        "backward's compute ends before the step begins, or after its communication": stamped
        & (
            (pl.col("compute_end_ns") < pl.col("begin_ns"))
            | (wait < -slack)
            | (pl.col("sync_end_ns") > pl.col("end_ns") + slack)
        ),
        "backward waits for longer than it lasts": stamped
        & (wait + pl.col("earlier_wait_ns") + pl.col("backward_wait_ns") > pl.col("backward_ns") + slack),
        "forward waits for parameters for longer than it lasts": stamped
        & (pl.col("buffer_wait_ns") + pl.col("forward_wait_ns") > pl.col("forward_ns") + slack),
        "forward waits for its buffers for longer than it lasts, or before or after its step": stamped
        & (pl.col("buffer_wait_ns") > 0)
        & (
            (pl.max_horizontal("buffer_wait_ns", buffered) > pl.col("forward_ns") + slack)
            | (buffered < 0)
            | (buffered > pl.col("buffer_wait_ns") + slack)
            | (pl.col("buffer_begin_ns") < pl.col("begin_ns") - slack)
            | (pl.col("buffer_end_ns") > pl.col("sync_end_ns") + slack)
        ),
    }
    if not plan.own_loop:  # an own loop may have its phases in another order
        of_steps["the phases of a step are not in order"] = stamped & (
            (before > pl.col("sync_end_ns") + slack)
            | (pl.col("sync_end_ns") + pl.col("optimizer_ns") > pl.col("end_ns") + slack)
        )
    yield from broken(steps, of_steps)


def shared_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """Those that synchronise the ranks of a group, as `together` has them."""
    shared = steps.lazy().filter(pl.col("arm").is_in(TOGETHER) & (pl.col("world_size") > 1))
    return together(shared, SHARED, "begin_ns", "end_ns")
