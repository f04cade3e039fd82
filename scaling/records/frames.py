"""Tables: their columns, and how their rows are read, a selection at once or a few whole rounds at a time.

The columns follow records.format: a field that is added there is a column here.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from scaling.records.format import BlockRecord, CollectiveRow, MemoryRecord, StepRow

Schema = dict[str, Any]
"""Column names and their polars types."""

_TYPES = {int: pl.Int64, int | None: pl.Int64, str: pl.String, bool: pl.Boolean}
_RANK: Schema = {"launch": pl.Int64, "rank": pl.Int64}


def _fields(record: type) -> Schema:
    """A column for each field of a record or row that holds one value; lists and floats get none."""
    types = {name: _TYPES.get(kind) for name, kind in typing.get_type_hints(record).items()}
    return {name: kind for name, kind in types.items() if kind is not None}


BLOCK_COLUMNS = {"block" if name == "id" else name: name for name in _fields(BlockRecord)}
MEMORY_COLUMNS = {"block" if name == "b" else name: name for name in _fields(MemoryRecord)}
"""Columns of a table, and the record's field that each holds."""
HOST_TIMES = {"host_begin_ns": "begin_ns", "host_end_ns": "end_ns"}
"""Column on the clock of the rank's own host, as its telemetry is: column with the same instant on rank 0's clock."""
_BLOCKS: Schema = {
    **_RANK,
    **{column: _fields(BlockRecord)[name] for column, name in BLOCK_COLUMNS.items()},
    **dict.fromkeys(HOST_TIMES, pl.Int64),
}
LINE_SPAN = {"lines_begin": pl.Int64, "lines_end": pl.Int64}
"""Columns of a block while its steps are not read: where its lines lie in the rank's file, bytes."""
_REPEATED = ("launch", "rank", "block", "round", "world_size", "arm", "detailed", "solo_rank", "batch")
REPEATED_OF_BLOCK: Schema = {name: _BLOCKS[name] for name in _REPEATED}
"""Columns of a block that each of its steps, collectives and parameters repeats."""
_PLACE: Schema = {**_RANK, "block": pl.Int64, "step": pl.Int64}
_COLLECTIVES: Schema = _PLACE | _fields(CollectiveRow) | REPEATED_OF_BLOCK

SCHEMAS: dict[str, Schema] = {
    "blocks": _BLOCKS,
    "steps": _PLACE | _fields(StepRow) | REPEATED_OF_BLOCK,
    "buckets": _COLLECTIVES,
    "fabric": _COLLECTIVES,
    "parameters": {**REPEATED_OF_BLOCK, "index": pl.Int64, "bytes": pl.Int64, "ready_ns": pl.Int64},
    "memory": {**_RANK, **dict.fromkeys(MEMORY_COLUMNS, pl.Int64)},
    "phases": {**_RANK, "block": pl.Int64, "name": pl.String, "ns": pl.Int64, "wait_ns": pl.Int64},
}
"""Columns of every table, by its name in records.tables.Tables."""
OF_BLOCKS: dict[str, Schema] = {
    "blocks": SCHEMAS["blocks"] | LINE_SPAN,
    "memory": SCHEMAS["memory"],
    "phases": SCHEMAS["phases"],
}
"""Columns of the tables that come with a rank's file before its steps."""


STEP_ROWS = 40_000
"""Rows of steps that `few_rounds` reads at a time; there may be ten times as many of collectives."""

PART = "part"
"""Column of a table in files that names the part; a selection by it opens the files of these parts alone."""
ITS_PART = pl.col(f"^{PART}$")
"""To keep that column in a selection: a regular expression, so that a table in memory gives nothing for it."""

Frame = pl.LazyFrame
"""A table; nothing is read before `in_memory` or `few_rounds`."""


def in_memory(frame: Frame) -> pl.DataFrame:
    """The rows of a selection, without the column PART; files are read and reduced a part at a time."""
    return frame.lazy().drop(PART, strict=False).collect(engine="streaming")


def few_rounds(steps: Frame, others: Frame) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Rows of two tables in memory, a few whole rounds at a time, in the order of launches and rounds.

    The rounds are those of `steps`, and `others` has rows of the same blocks; yields nothing where `steps` is empty.
    With the column PART, each file is opened for the rounds that it holds. Tables without it are in memory and come
    whole, whatever their size.
    """
    if PART not in steps.collect_schema():
        first, second = in_memory(steps), in_memory(others)
        if first.height:
            yield first, second
        return
    for chosen in round_selections(steps, STEP_ROWS):
        yield _both(steps, others, chosen)  # and keep none of them: they may be a million rows


def _both(steps: Frame, others: Frame, chosen: pl.Expr) -> tuple[pl.DataFrame, pl.DataFrame]:
    first, second = pl.collect_all([frame.filter(chosen).drop(PART) for frame in (steps, others)])
    return first, second


def round_selections(steps: Frame, about_rows: int) -> Iterator[pl.Expr]:
    """Selections of a few whole rounds each, in the order of launches and rounds; `steps`: in files.

    `rows`: about so many of `steps` each, or those of one round.
    """
    of_rounds = steps.group_by("launch", "round").agg(parts=pl.col(PART).unique(), rows=pl.len())
    counts = in_memory(of_rounds).sort("launch", "round")
    for (launch,), part in counts.partition_by("launch", as_dict=True, maintain_order=True).items():
        chunk = (part["rows"].cum_sum() - part["rows"]) // about_rows
        for rounds in part.with_columns(batch=chunk).partition_by("batch", maintain_order=True):
            chosen = (pl.col("launch") == launch) & pl.col("round").is_in(rounds["round"].to_list())
            yield chosen & pl.col(PART).is_in(rounds["parts"].explode().unique().to_list())


def in_order(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """The rows sorted by columns of numbers; no copy where they are in order, as those that were read mostly are."""
    behind = np.zeros(max(frame.height - 1, 0), dtype=bool)
    for name in reversed(columns):
        values = frame[name].to_numpy()
        behind = (values[1:] < values[:-1]) | ((values[1:] == values[:-1]) & behind)
    return frame.sort(columns) if behind.any() else frame


def by_runs(frame: pl.DataFrame, place: Sequence[str], **values: pl.Expr) -> pl.DataFrame:
    """A row for each place, in order, with other values of its rows, such as `last=pl.col("end_ns").max()`.

    `place`: columns of numbers. Rows in their order need no hash of every row: each place is one run of them.
    """
    frame = in_order(frame, place)
    first = pl.any_horizontal(pl.col(name) != pl.col(name).shift(1) for name in place).fill_null(value=True)
    runs = frame.with_columns(run=first.cum_sum().set_sorted()).group_by("run", maintain_order=True)
    return runs.agg(pl.col(place).first(), **values).drop("run")
