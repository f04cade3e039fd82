"""One rank's file to tables: up to its end, or to the first line that is not whole.

A file of a long run has a hundred thousand numbers, so they go from JSON straight to arrays, without an object
for each row. Absolute stamps come out on rank 0's clock (records.clock). Blocks also keep their times on their own
host's clock, because other samples of that host (telemetry) carry it.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from scaling.reading import RECORDS_BYTES_MAX, read_bytes
from scaling.records import seal
from scaling.records.clock import Ints, Shift
from scaling.records.format import (
    COLLECTIVE_DEFAULTS,
    COLLECTIVE_FIELDS,
    COLLECTIVE_WIDTHS,
    SCHEMA,
    STEP_FIELDS,
    BlockRecord,
    CollectiveRow,
    MemoryRecord,
    StepRecord,
    StepRow,
)
from scaling.records.lines import (
    PLAIN_WIDTH,
    WIDTHS,
    Block,
    Clock,
    End,
    Memory,
    Pause,
    Step,
    decode_head,
    decode_records,
)
from scaling.spec.schedule import FABRIC

Schema = dict[str, Any]
"""Column names and their polars types."""

_TYPES = {int: pl.Int64, int | None: pl.Int64, str: pl.String, bool: pl.Boolean}
_RANK: Schema = {"launch": pl.Int64, "rank": pl.Int64}


def _fields(record: type) -> Schema:
    """A column for each field of a record or row that holds one value."""
    found = {name: _TYPES.get(kind) for name, kind in typing.get_type_hints(record).items()}
    return {name: kind for name, kind in found.items() if kind is not None}


_BLOCK_COLUMNS = {"block" if name == "id" else name: name for name in _fields(BlockRecord)}
_MEMORY_COLUMNS = {"block" if name == "b" else name: name for name in _fields(MemoryRecord)}
"""Columns of a table, and the record's field that each holds."""
_HOST_TIMES = {"host_begin_ns": "begin_ns", "host_end_ns": "end_ns"}
"""Columns on the clock of the rank's own host, as its telemetry is, and their names on rank 0's clock."""
_BLOCKS: Schema = {
    **_RANK,
    **{column: _fields(BlockRecord)[name] for column, name in _BLOCK_COLUMNS.items()},
    **dict.fromkeys(_HOST_TIMES, pl.Int64),
}
_NAMES = ("launch", "rank", "block", "round", "world_size", "arm", "detailed", "solo_rank", "batch")
_BLOCK_NAMES: Schema = {name: _BLOCKS[name] for name in _NAMES}
"""Columns of a block that each of its steps, collectives and parameters repeats."""
_PLACE: Schema = {**_RANK, "block": pl.Int64, "step": pl.Int64}
_COLLECTIVES: Schema = _PLACE | _fields(CollectiveRow) | _BLOCK_NAMES

SCHEMAS: dict[str, Schema] = {
    "blocks": _BLOCKS,
    "steps": _PLACE | _fields(StepRow) | _BLOCK_NAMES,
    "buckets": _COLLECTIVES,
    "fabric": _COLLECTIVES,
    "parameters": {**_BLOCK_NAMES, "index": pl.Int64, "bytes": pl.Int64, "ready_ns": pl.Int64},
    "memory": {**_RANK, **dict.fromkeys(_MEMORY_COLUMNS, pl.Int64)},
}
"""Columns of every table, by its name in records.tables.Tables."""

STEP_TAG = b'{"t":"step"'
"""How a step's line begins."""
_STEP_STAMPS = [
    STEP_FIELDS.index(name)
    for name in ("begin_ns", "end_ns", "compute_end_ns", "sync_end_ns", "buffer_begin_ns", "buffer_end_ns")
]
_COLLECTIVE_STAMPS = [
    COLLECTIVE_FIELDS.index(name)
    for name in ("ready_ns", "launch_ns", "done_ns", "enqueue_ns", "wait_ns", "resume_ns")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """What one rank left: its head, and whether its file is complete."""

    launch: int
    rank: int
    world: int
    """Ranks of the launch; 0 in older files."""
    host: int
    hostname: str
    groups: dict[int, tuple[int, ...]]
    """Ranks of each group of this rank, by the group's key (records.format.CollectiveRow.group)."""
    warmup: dict[int, int]
    cores: int
    """Cores that the ranks of its host share; 0 if unknown."""
    numa_nodes: int
    """NUMA nodes of its host; 0 if unknown."""
    buckets: tuple[int, ...]
    """Own loops: bytes of DDP's buckets in the order of reduction; empty in older files and other runs."""
    fed_ns: dict[int, int]
    """By world size: duration of a fetch whose batch is ready; -1 without a data loader."""
    clock_bound_ns: int | None
    """Largest error of its stamps on rank 0's clock; None where the two clocks were never compared."""
    clock_corrected: bool
    """Whether its stamps were moved onto rank 0's clock."""
    cut_off: bool
    ended: bool
    """Whether the rank reached the end of the launch, where its clock is compared a second time."""
    plan_digest: str = ""
    """Of the plan.json that the rank read; empty in own loops and older files."""
    blocks: int | None = None
    """Blocks that it wrote by its own count; None where the file has no end line, or an older one."""
    damaged: tuple[str, ...] = ()
    """What was left out because it changed after it was written: blocks, or kinds of lines."""
    state: str | None = None
    """Own loops: `done` or `failed`; None where the file has no end line."""
    error: str = ""
    paused_ns: tuple[int, ...] = ()
    """Own loops: duration of each gap between two steps in which the loop did something else."""
    dropped_samples: int = 0
    """Steps that belong to no whole block."""


def read_rank(path: Path, launch: int, rank: int) -> tuple[RankFile, dict[str, pl.DataFrame]]:
    """What a rank left, and its rows of each table in SCHEMAS, from whole blocks only.

    OSError where the file cannot be read, ValueError where it has no head, another format, numbers beyond 64 bits, or
    was written by another rank or in another launch.
    """
    content, newline, tail = read_bytes(path, RECORDS_BYTES_MAX).rpartition(
        b"\n"
    )  # a whole file ends in a newline
    first = content.partition(b"\n")[0] + newline
    head = decode_head(first)
    if head.schema != SCHEMA:
        raise ValueError(f"written in format {head.schema}, this version reads format {SCHEMA}")
    if (head.launch, head.rank) != (launch, rank):
        raise ValueError(f"rank {head.rank} wrote it in launch {head.launch}, so it was copied or renamed")
    sealed = seal.checked(content + newline)
    records, whole = decode_records(sealed.text.removeprefix(first))
    clocks = [record for record in records if isinstance(record, Clock)]
    steps = [record for record in records if isinstance(record, Step)]
    blocks = [record for record in records if isinstance(record, Block)]
    last = next((record for record in reversed(records) if isinstance(record, Step | Block)), None)
    end = next((record for record in records if isinstance(record, End)), None)
    shift = Shift(clocks)
    try:
        tables, dropped = _tables(launch, rank, blocks, steps, shift)
    except OverflowError as error:
        raise ValueError("a number in it is no stamp, it has more than 64 bits") from error
    memory = [record for record in records if isinstance(record, Memory)]
    tables["memory"] = pl.DataFrame(_values(memory, _MEMORY_COLUMNS, launch, rank), schema=SCHEMAS["memory"])
    file = RankFile(
        launch=launch,
        rank=rank,
        world=head.world,
        host=head.host,
        hostname=head.hostname,
        groups={int(key): tuple(ranks) for key, ranks in head.groups.items()},
        warmup={int(n): count for n, count in head.warmup.items()},
        cores=head.cores,
        numa_nodes=head.numa_nodes,
        buckets=tuple(head.buckets),
        fed_ns={int(n): ns for n, ns in head.fed_ns.items()},
        clock_bound_ns=shift.bound_ns([at for block in blocks for at in (block.begin_ns, block.end_ns)]),
        clock_corrected=not shift.still,
        cut_off=tail != b"" or not whole or isinstance(last, Step),
        ended=any(clock.at == "end" for clock in clocks),
        plan_digest=head.plan_digest,
        blocks=end.blocks if end and end.blocks >= 0 else None,
        damaged=tuple(_named(stretch) for stretch in sealed.damaged),
        state=end.state if end else None,
        error=end.error if end else "",
        paused_ns=tuple(record.gap_ns for record in records if isinstance(record, Pause)),
        dropped_samples=dropped + sum(stretch.count(STEP_TAG) for stretch in sealed.damaged),
    )
    return file, tables


def _named(stretch: bytes) -> str:
    """What a damaged stretch of lines holds, as far as it can still be read."""
    records, _ = decode_records(stretch)
    blocks = sorted({record.id for record in records if isinstance(record, Block)})
    blocks = blocks or sorted({record.b for record in records if isinstance(record, Step)})
    if blocks:
        return f"block {', '.join(map(str, blocks))}"
    if stretch.count(STEP_TAG):
        return "a block"
    kind = re.match(rb'{"t":"(\w+)"', stretch)
    return f"its {kind[1].decode()} line" if kind else "a line"


def _tables(
    launch: int, rank: int, blocks: Sequence[BlockRecord], steps: Sequence[StepRecord], shift: Shift
) -> tuple[dict[str, pl.DataFrame], int]:
    """Tables by name, and the number of steps that belong to none of the blocks."""
    columns = _values(blocks, _BLOCK_COLUMNS, launch, rank)
    for on_host, name in _HOST_TIMES.items():
        columns[on_host] = np.array(columns[name], dtype=np.int64)
        columns[name] = shift.at(columns[on_host])
    table = pl.DataFrame(columns, schema=_BLOCKS)
    place = {block.id: k for k, block in enumerate(blocks)}
    of_step = np.array([place.get(step.b, -1) for step in steps], dtype=np.int64)
    kept = np.flatnonzero(of_step >= 0)
    known = [steps[k] for k in kept.tolist()]
    of_step = of_step[kept]
    numbers = np.array([step.i for step in known], dtype=np.int64)

    stamps = _stamps(known)
    stamps[:, _STEP_STAMPS] = shift.at(stamps[:, _STEP_STAMPS])
    plain = pl.Series([len(step.s) == PLAIN_WIDTH for step in known], dtype=pl.Boolean)
    keys = table.select(list(_BLOCK_NAMES))
    found = _rows(keys[of_step], {"step": numbers, **_columns(STEP_FIELDS, stamps)}, "steps")
    unknown = pl.when(~plain).then(pl.col(STEP_FIELDS[PLAIN_WIDTH:]))

    exchanged = _exchanged(list(chain.from_iterable(step.c for step in known)))
    exchanged[:, _COLLECTIVE_STAMPS] = shift.at(exchanged[:, _COLLECTIVE_STAMPS])
    owner = np.repeat(np.arange(len(known)), np.array([len(step.c) for step in known], dtype=np.int64))
    fields = {"step": numbers[owner], **_columns(COLLECTIVE_FIELDS, exchanged)}
    owner = of_step[owner]
    swept = np.array([block.arm == FABRIC for block in blocks], dtype=bool)[owner]

    ready = _flat(chain.from_iterable(block.parameters for block in blocks), 2)
    counts = np.array([len(block.parameters) for block in blocks], dtype=np.int64)
    index = np.concatenate([np.arange(0), *map(np.arange, counts)])
    each = {"index": index, **_columns(("bytes", "ready_ns"), ready)}
    return {
        "blocks": table,
        "steps": found.with_columns(unknown),
        "buckets": _rows(keys[owner[~swept]], {name: of[~swept] for name, of in fields.items()}, "buckets"),
        "fabric": _rows(keys[owner[swept]], {name: of[swept] for name, of in fields.items()}, "fabric"),
        "parameters": _rows(keys[np.repeat(np.arange(len(blocks)), counts)], each, "parameters"),
    }, len(steps) - len(kept)


def _values(records: Sequence[Any], columns: dict[str, str], launch: int, rank: int) -> dict[str, Any]:
    """Columns of a table with a row per record; `columns` has the field of each."""
    found = {column: [getattr(record, name) for record in records] for column, name in columns.items()}
    return {"launch": [launch] * len(records), "rank": [rank] * len(records), **found}


def _stamps(steps: Sequence[StepRecord]) -> Ints:
    """Array of steps x STEP_FIELDS; 0 where a line leaves one out."""
    stamps = np.zeros((len(steps), len(STEP_FIELDS)), dtype=np.int64)
    widths = np.array([len(step.s) for step in steps], dtype=np.int64)
    for width in WIDTHS:
        chosen = np.flatnonzero(widths == width)
        stamps[chosen, :width] = _flat((steps[k].s for k in chosen.tolist()), width)
    return stamps


def _exchanged(rows: Sequence[tuple[int, ...]]) -> Ints:
    """Array of collectives x COLLECTIVE_FIELDS; what a row leaves out has its default."""
    values = np.zeros((len(rows), len(COLLECTIVE_FIELDS)), dtype=np.int64)
    values[:, -len(COLLECTIVE_DEFAULTS) :] = COLLECTIVE_DEFAULTS
    widths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    for width in COLLECTIVE_WIDTHS:
        chosen = np.flatnonzero(widths == width)
        if chosen.size:
            of_width = rows if chosen.size == len(rows) else [rows[k] for k in chosen.tolist()]
            values[chosen, :width] = _flat(of_width, width)
    return values


def _flat(rows: Any, width: int) -> Ints:
    """Rows of `width` numbers as one array."""
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(-1, width)


def _columns(names: Sequence[str], values: Ints) -> dict[str, Ints]:
    return {name: np.ascontiguousarray(values[:, k]) for k, name in enumerate(names)}


def _rows(keys: pl.DataFrame, columns: dict[str, Ints], table: str) -> pl.DataFrame:
    """Rows of a table; `keys` has the block's columns for each row."""
    found = {of.name: of for of in keys.iter_columns()} | {k: pl.Series(k, of) for k, of in columns.items()}
    return pl.DataFrame([found[name] for name in SCHEMAS[table]])
