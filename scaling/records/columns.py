"""Columns of the tables that are made of rank files, and the record's field that each holds."""

from __future__ import annotations

import typing
from typing import Any

import polars as pl

from scaling.records.format import BlockRecord, CollectiveRow, MemoryRecord, StepRow

Schema = dict[str, Any]
"""Column names and their polars types."""

_TYPES = {int: pl.Int64, int | None: pl.Int64, str: pl.String, bool: pl.Boolean}
_RANK: Schema = {"launch": pl.Int64, "rank": pl.Int64}


def _fields(record: type) -> Schema:
    """A column for each field of a record or row that holds one value."""
    found = {name: _TYPES.get(kind) for name, kind in typing.get_type_hints(record).items()}
    return {name: kind for name, kind in found.items() if kind is not None}


BLOCK_COLUMNS = {"block" if name == "id" else name: name for name in _fields(BlockRecord)}
MEMORY_COLUMNS = {"block" if name == "b" else name: name for name in _fields(MemoryRecord)}
"""Columns of a table, and the record's field that each holds."""
HOST_TIMES = {"host_begin_ns": "begin_ns", "host_end_ns": "end_ns"}
"""Columns on the clock of the rank's own host, as its telemetry is, and their names on rank 0's clock."""
_BLOCKS: Schema = {
    **_RANK,
    **{column: _fields(BlockRecord)[name] for column, name in BLOCK_COLUMNS.items()},
    **dict.fromkeys(HOST_TIMES, pl.Int64),
}
LINES = {"lines_begin": pl.Int64, "lines_end": pl.Int64}
"""Columns of a block while its steps are not read: where its lines lie in the rank's file, bytes."""
_NAMES = ("launch", "rank", "block", "round", "world_size", "arm", "detailed", "solo_rank", "batch")
BLOCK_NAMES: Schema = {name: _BLOCKS[name] for name in _NAMES}
"""Columns of a block that each of its steps, collectives and parameters repeats."""
_PLACE: Schema = {**_RANK, "block": pl.Int64, "step": pl.Int64}
_COLLECTIVES: Schema = _PLACE | _fields(CollectiveRow) | BLOCK_NAMES

SCHEMAS: dict[str, Schema] = {
    "blocks": _BLOCKS,
    "steps": _PLACE | _fields(StepRow) | BLOCK_NAMES,
    "buckets": _COLLECTIVES,
    "fabric": _COLLECTIVES,
    "parameters": {**BLOCK_NAMES, "index": pl.Int64, "bytes": pl.Int64, "ready_ns": pl.Int64},
    "memory": {**_RANK, **dict.fromkeys(MEMORY_COLUMNS, pl.Int64)},
}
"""Columns of every table, by its name in records.tables.Tables."""
OF_BLOCKS: dict[str, Schema] = {"blocks": SCHEMAS["blocks"] | LINES, "memory": SCHEMAS["memory"]}
"""Columns of the tables that come with a rank's file before its steps."""
