"""Rules of collectives: their order, their place in a step, and that blocks of an arm send the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from scaling.reading import INT_MAX
from scaling.records.frames import Frame, in_memory
from scaling.records.rules.broken import BLOCK, STEP, broken, together, unlike
from scaling.records.rules.runs import runs
from scaling.spec.run import COLLECTIVES, KINDS, MESSAGES
from scaling.spec.schedule import DDP_SOLO, FABRIC, PAIRS, PHASES, PROBE, REPLAY

ALL_REDUCE = COLLECTIVES.index("all_reduce")


SHARED = ["launch", "block", "step", "seq"]
"""Rows of one collective."""


def of_collectives(steps: pl.DataFrame, rows: pl.DataFrame, slack: int) -> Iterator[pl.DataFrame]:
    """Collectives that break a rule, by themselves or in their step. `slack`: ns."""
    extent = steps.select(*STEP, step_begin="begin_ns", step_end="end_ns")
    yield from broken(
        rows,
        {
            "a collective was complete before it was launched": pl.col("done_ns")
            < pl.col("launch_ns") - slack,
            "a collective has no time": pl.col("arm").is_in([PROBE, REPLAY, FABRIC, PAIRS])
            & ((pl.col("launch_ns") <= 0) | (pl.col("done_ns") <= 0)),
            "a collective has no bytes, or is of no known kind": (pl.col("bytes") < 1)
            | ~pl.col("kind").is_between(0, len(KINDS) - 1)
            | (pl.col("seq") < 0),
            "a collective was enqueued after it was complete": (pl.col("done_ns") > 0)
            & (pl.col("enqueue_ns") > pl.col("done_ns") + slack),
            "a rank goes on before it began to wait": pl.col("resume_ns") < pl.col("wait_ns"),
            "a collective is of no known phase or unit": (pl.col("unit") < -1)
            | (pl.col("calls") < 1)
            | ~pl.col("phase").is_between(0, len(PHASES) - 1),
        },
    )
    # A host may enqueue a collective while its device is in an earlier step.
    each = runs(rows, STEP)
    ready, launched, done = (each.frame[f"{name}_ns"].to_numpy() for name in ("ready", "launch", "done"))
    seq = each.frame["seq"].to_numpy()
    taken = np.minimum(*(np.where(stamps > 0, stamps, INT_MAX) for stamps in (ready, launched)))
    of_step = each.table(
        ["arm"],
        first=each.least(taken),
        last=each.most(np.maximum(np.maximum(ready, launched), done)),
        rows=each.lengths,
        different=each.most(seq) - each.least(seq) + 1,
    )
    of_step = of_step.join(extent, on=STEP, how="left")
    room = slack + (pl.col("step_end") - pl.col("step_begin")) // 20
    yield from broken(
        of_step,
        {
            "a collective lies outside of its step": (pl.col("first") < pl.col("step_begin") - room)
            | (pl.col("last") > pl.col("step_end") + room),
            "a collective of a step is missing or twice there": pl.col("different") != pl.col("rows"),
        },
    )


def shared_collectives(rows: pl.DataFrame) -> pl.DataFrame:
    """Those that all ranks of a group take part in, as `together` has them."""
    shared = rows.lazy().filter(
        (pl.col("kind") == ALL_REDUCE)
        & (pl.col("world_size") > 1)
        & (pl.col("group") == pl.col("world_size"))  # those of one axis of a mesh have other ranks each
        & pl.col("arm").is_in([PROBE, REPLAY, FABRIC])
    )
    return together(shared, SHARED, "launch_ns", "done_ns")


def traffic_of(rows: pl.DataFrame) -> pl.DataFrame:
    """What a step of each block sent and on which ranks, but for messages: of a pipeline each rank has others."""
    messages = pl.col("kind").is_in([KINDS.index(kind) for kind in MESSAGES])
    each = (
        rows.filter(pl.col("arm").is_in([PROBE, DDP_SOLO, REPLAY, FABRIC]) & ~messages)
        .group_by(*BLOCK, "world_size", "arm")
        .agg(
            steps=pl.col("step").n_unique(),
            calls=pl.len(),
            sent=pl.col("bytes").sum(),
            most=(pl.col("bytes") * (pl.col("seq") + 1)).sum(),
        )
        # A step's: blocks of later rounds may have fewer steps.
        .with_columns(pl.col("calls", "sent", "most") / pl.col("steps"))
    )
    return each.group_by("launch", "block", "world_size", "arm", "calls", "sent", "most").agg("rank")


def of_traffic(traffic: pl.DataFrame, blocks: Frame) -> Iterator[pl.DataFrame]:
    """Blocks whose collectives are not those of the launch's other blocks of their arm, on this rank or on others.

    Of strategies side by side, each is compared with itself.
    """
    why = "its collectives are not those of the launch's other blocks of its arm"
    place = ["launch", "block"]
    of = in_memory(blocks.lazy().group_by(place).agg(pl.col("case").max()))
    known = traffic.join(of, on=place, how="left").with_columns(pl.col("case").fill_null(-1))
    names, many = ["calls", "sent", "most"], pl.col("rank").list.len()
    for odd in unlike(known, ["launch", "world_size", "arm", "case"], names, why, many):
        yield odd.explode("rank")
