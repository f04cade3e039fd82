"""One rank's file to tables: up to its end, or to the first line that is not whole.

A file of a long run has a hundred thousand numbers, so they go from JSON to arrays as they are, without an
object for each row. Absolute stamps come out on rank 0's clock (scaling.rankclock). Of its blocks the times on its
own host's clock stay beside them, for what else was sampled on that host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from scaling.rankclock import Ints, Shift
from scaling.ranklines import (
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
from scaling.records import COLLECTIVE_FIELDS, FABRIC, SCHEMA, STEP_FIELDS

_BLOCK_KEYS = {
    "launch": pl.Int64,
    "rank": pl.Int64,
    "block": pl.Int64,
    "round": pl.Int64,
    "world_size": pl.Int64,
    "arm": pl.String,
    "detailed": pl.Boolean,
    "solo_rank": pl.Int64,
    "batch": pl.Int64,
}
_BLOCKS = {
    **_BLOCK_KEYS,
    "accumulation": pl.Int64,
    "lead_in": pl.Int64,
    "steps": pl.Int64,
    "make_ns": pl.Int64,
    "make_cpu_ns": pl.Int64,
    "begin_ns": pl.Int64,
    "end_ns": pl.Int64,
    "host_begin_ns": pl.Int64,
    "host_end_ns": pl.Int64,
    "cpu_ns": pl.Int64,
    "thread_cpu_ns": pl.Int64,
    "delayed_ns": pl.Int64,
    "case": pl.Int64,
    "peak_bytes": pl.Int64,
}
_OF_HOST = {"host_begin_ns": "begin_ns", "host_end_ns": "end_ns"}
"""Columns of blocks on the clock of the rank's own host, as its telemetry is, and what they are on rank 0's."""
_PLACE = {"launch": pl.Int64, "rank": pl.Int64, "block": pl.Int64, "step": pl.Int64}
_OF_BLOCK = {name: kind for name, kind in _BLOCK_KEYS.items() if name not in _PLACE}
_COLLECTIVES = _PLACE | dict.fromkeys(COLLECTIVE_FIELDS, pl.Int64) | _OF_BLOCK

SCHEMAS: dict[str, dict[str, Any]] = {
    "blocks": _BLOCKS,
    "steps": _PLACE | dict.fromkeys(STEP_FIELDS, pl.Int64) | _OF_BLOCK,
    "buckets": _COLLECTIVES,
    "fabric": _COLLECTIVES,
    "parameters": {**_BLOCK_KEYS, "index": pl.Int64, "bytes": pl.Int64, "ready_ns": pl.Int64},
    "memory": {
        "launch": pl.Int64,
        "rank": pl.Int64,
        "block": pl.Int64,
        "host_bytes": pl.Int64,
        "device_bytes": pl.Int64,
    },
}
"""Columns of every table, by its name in scaling.collect.Tables."""

_STEP_STAMPS = [STEP_FIELDS.index(name) for name in ("begin_ns", "end_ns", "compute_end_ns", "sync_end_ns")]
_COLLECTIVE_STAMPS = [COLLECTIVE_FIELDS.index(name) for name in ("ready_ns", "launch_ns", "done_ns")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """What one rank left: its head, and whether its file ends in the middle of something."""

    launch: int
    rank: int
    world: int
    """Ranks of the launch; 0 where its head does not say."""
    host: int
    hostname: str
    groups: dict[int, tuple[int, ...]]
    """Ranks that its collectives ran over, by their key (records.COLLECTIVE_FIELDS)."""
    warmup: dict[int, int]
    cores: int
    """Of its host; 0 unknown."""
    fed_ns: dict[int, int]
    """By world size: what a fetch takes whose batch is ready; -1 without a loader."""
    clock_bound_ns: int | None
    """By how much its stamps may be off on rank 0's clock; None where the two were never compared."""
    clock_corrected: bool
    """Whether its stamps were moved onto rank 0's clock."""
    cut_off: bool
    ended: bool
    """Whether it came to the end of the launch: its clock was read a second time."""
    state: str | None = None
    """Own loops: `done` or `failed`; None where the file has no end line."""
    error: str = ""
    paused_ns: tuple[int, ...] = ()
    """Own loops: each stretch between two steps that was no input."""
    dropped_samples: int = 0
    """Steps that belong to no whole block."""


def read_rank(path: Path, launch: int, rank: int) -> tuple[RankFile, dict[str, pl.DataFrame]]:
    """What a rank left, and its rows of each of SCHEMAS: whole blocks only.

    OSError where it cannot be read, ValueError where it has no head, another format, or numbers beyond 64 bits.
    """
    content, _, tail = path.read_bytes().rpartition(b"\n")  # a whole file ends in a newline
    first, _, rest = content.partition(b"\n")
    head = decode_head(first)
    if head.schema != SCHEMA:
        raise ValueError(f"written in format {head.schema}, this version reads format {SCHEMA}")
    records, whole = decode_records(rest)
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
    held = [record for record in records if isinstance(record, Memory)]
    columns = {name: [getattr(one, name) for one in held] for name in ("host_bytes", "device_bytes")}
    columns |= {"launch": [launch] * len(held), "rank": [rank] * len(held), "block": [one.b for one in held]}
    tables["memory"] = pl.DataFrame(columns, schema=SCHEMAS["memory"])
    file = RankFile(
        launch=launch,
        rank=rank,
        world=head.world,
        host=head.host,
        hostname=head.hostname,
        groups={int(key): tuple(ranks) for key, ranks in head.groups.items()},
        warmup={int(n): count for n, count in head.warmup.items()},
        cores=head.cores,
        fed_ns={int(n): ns for n, ns in head.fed_ns.items()},
        clock_bound_ns=shift.bound_ns([at for block in blocks for at in (block.begin_ns, block.end_ns)]),
        clock_corrected=not shift.still,
        cut_off=tail != b"" or not whole or isinstance(last, Step),
        ended=any(clock.at == "end" for clock in clocks),
        state=end.state if end else None,
        error=end.error if end else "",
        paused_ns=tuple(record.gap_ns for record in records if isinstance(record, Pause)),
        dropped_samples=dropped,
    )
    return file, tables


def _tables(
    launch: int, rank: int, blocks: Sequence[Block], steps: Sequence[Step], shift: Shift
) -> tuple[dict[str, pl.DataFrame], int]:
    """Tables by name, and how many steps belong to none of the blocks."""
    columns: dict[str, Any] = {
        name: [getattr(block, name) for block in blocks] for name in list(_BLOCKS)[3:] if name not in _OF_HOST
    }
    for own, common in _OF_HOST.items():
        columns[own] = np.array(columns[common], dtype=np.int64)
        columns[common] = shift.at(columns[own])
    columns |= {
        "launch": [launch] * len(blocks),
        "rank": [rank] * len(blocks),
        "block": [b.id for b in blocks],
    }
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
    keys = table.select(list(_BLOCK_KEYS))
    found = _rows(keys[of_step], {"step": numbers, **_columns(STEP_FIELDS, stamps)}, "steps")
    unknown = pl.when(~plain).then(pl.col(STEP_FIELDS[PLAIN_WIDTH:]))

    exchanged = _flat(chain.from_iterable(step.c for step in known), len(COLLECTIVE_FIELDS))
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


def _stamps(steps: Sequence[Step]) -> Ints:
    """Steps x STEP_FIELDS; 0 where a line leaves one out."""
    stamps = np.zeros((len(steps), len(STEP_FIELDS)), dtype=np.int64)
    widths = np.array([len(step.s) for step in steps], dtype=np.int64)
    for width in WIDTHS:
        chosen = np.flatnonzero(widths == width)
        stamps[chosen, :width] = _flat((steps[k].s for k in chosen.tolist()), width)
    return stamps


def _flat(rows: Any, width: int) -> Ints:
    """Rows of `width` numbers as one array."""
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(-1, width)


def _columns(names: Sequence[str], values: Ints) -> dict[str, Ints]:
    return {name: np.ascontiguousarray(values[:, k]) for k, name in enumerate(names)}


def _rows(keys: pl.DataFrame, columns: dict[str, Ints], table: str) -> pl.DataFrame:
    """Rows of a table: `keys` has the names of each one's block."""
    found = {of.name: of for of in keys.iter_columns()} | {k: pl.Series(k, of) for k, of in columns.items()}
    return pl.DataFrame([found[name] for name in SCHEMAS[table]])
