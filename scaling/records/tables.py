"""The records of a run as tables: Parquet files in a folder.

    RUN/steps.parquet/part-000000.parquet, part-000001.parquet, ...      and so blocks, buckets, fabric, parameters

A file of the step tables has a few whole blocks of all ranks, one of `blocks` some ranks. `memory` and `phases` are not
published.

Only whole blocks count; what is cut off or missing is reported, never filled in. Absolute stamps come out on rank 0's
clock (records.rank_file). While tables are made and analysed, their files lie in a temporary folder, in the run's where
that can be written to. There each file's folder names its part, so that a selection opens few files. Each file's
metadata has the version of the tables, which is not checked on reading.

Rows are read a selection at once, or a few whole rounds at a time. The columns follow records.format: a field that is
added there is a column here.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from scaling.records.decode import Gap, RankFile
from scaling.records.format import BlockRecord, CollectiveRow, MemoryRecord, StepRow
from scaling.records.paths import RunFolder, is_own

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
"""Columns of every table, by its name in `Tables`."""
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


TABLE_SCHEMA = "1"
STEP_TABLES = ("steps", "buckets", "fabric", "parameters")
"""Tables that are read from lines of steps, in parts; they grow with the run."""
PUBLISHED = ("blocks", *STEP_TABLES)
"""Tables that stay in the run's folder."""


_SCRATCH = ".tables-"
DAY_S = 86_400


def scratch_folder(folder: RunFolder) -> TemporaryDirectory[str]:
    """A temporary folder for the files of tables, which goes with them. OSError where it cannot be made.

    It is made in the run's folder if that is this user's own: another one could put links in the place of the files.
    What an analysis left there that was killed goes after a day.
    """
    if not is_own(folder):
        return TemporaryDirectory(prefix=_SCRATCH)
    for left in folder.path.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > DAY_S:
                shutil.rmtree(left)
    return TemporaryDirectory(prefix=_SCRATCH, dir=folder.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The files of a range of blocks of one launch; no other part has rows of them."""

    launch: int
    first: int
    last: int
    """Numbers of its first and its last block."""
    files: Mapping[str, Path]
    """By a table's name, of those that have rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All records of a run, a lazy frame for each table."""

    blocks: Frame
    steps: Frame
    buckets: Frame
    """Collectives (of DDP's buckets or of sharded units) in ddp_solo, probe, replay and pairs blocks."""
    fabric: Frame
    """Messages in the size sweep."""
    parameters: Frame
    """A row for each ddp_solo block, rank and parameter, in the order of registration: bytes, and when its gradient was
    ready since the step's begin, as the mean over the block's steps. Empty where training runs on a GPU."""
    memory: Frame
    """What each rank held after each block."""
    phases: Frame
    """What each rank spent in the phases that a loop names, summed over a block's steps."""
    ranks: tuple[RankFile, ...]
    gaps: tuple[Gap, ...]
    """What is missing."""
    dropped_samples: int
    """Steps that were written and belong to no whole block, or to one that was left out."""
    dropped_blocks: int = 0
    """Blocks that are missing, or were left out on all ranks because what they say cannot be."""
    parts: tuple[Part, ...] = ()
    block_files: tuple[Path, ...] = ()
    scratch: TemporaryDirectory[str] | None = None
    """Where the files lie; None where all rows are in memory."""

    @property
    def empty(self) -> bool:
        """Whether no step was recorded."""
        return in_memory(self.steps.select("launch").head(1)).is_empty()

    @property
    def launches(self) -> frozenset[int]:
        """Those that have blocks."""
        return frozenset(in_memory(self.blocks.select("launch").unique())["launch"])

    def having(self, frames: Mapping[str, Frame], **changes: Any) -> Tables:
        """These records with other rows, by a table's name."""
        return replace(self, **{**changes, **frames})


_NO_ROWS: dict[str, Any] = {name: pl.LazyFrame(schema=schema) for name, schema in SCHEMAS.items()}
EMPTY = Tables(**_NO_ROWS, ranks=(), gaps=(), dropped_samples=0)


def write_part(frames: Mapping[str, pl.DataFrame], folder: Path, *numbers: int) -> dict[str, Path]:
    """Write the step tables that have rows to files of a part; OSError where that fails. Parts sort by `numbers`."""
    part = "-".join(f"{number:09}" for number in numbers)
    files = {
        name: folder / name / f"{PART}={part}" / "rows.parquet" for name in STEP_TABLES if frames[name].height
    }
    for name, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)  # there already where a process died
        write_parquet(frames[name], file)
    return files


def scan_parts(parts: Iterable[Part], folder: Path) -> dict[str, Frame]:
    """The step tables of all parts."""
    named = {PART: pl.String}
    frames = {name: pl.LazyFrame(schema=SCHEMAS[name] | named) for name in STEP_TABLES}
    for name in {name for part in parts for name in part.files}:
        # Folders around it may have names that look like patterns or columns.
        frames[name] = pl.scan_parquet(folder / name, glob=False, hive_partitioning=True, hive_schema=named)
    return frames


def write_rows(frames: Iterable[pl.DataFrame], name: str, folder: Path) -> tuple[Path, ...]:
    """Write rows of another table, a file for each frame; OSError where that fails."""
    files: list[Path] = []
    for rows in frames:
        path = folder / name / f"{len(files):09}.parquet"
        path.parent.mkdir(exist_ok=True)
        write_parquet(rows, path)
        files.append(path)
    return tuple(files)


def scan_rows(files: Sequence[Path], name: str) -> Frame:
    """The rows that `write_rows` wrote."""
    if not files:
        return pl.LazyFrame(schema=SCHEMAS[name])
    return pl.scan_parquet(list(files), glob=False, hive_partitioning=False)


def map_blocks(tables: Tables, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Tables:
    """The tables after a change to the rows of `blocks`, all of some ranks at a time; their files are written anew.

    The tables that were given are not to be used any more.
    """
    for path in tables.block_files:
        write_parquet(change(_read(path)), path)
    if not tables.block_files:
        return tables.having({"blocks": change(in_memory(tables.blocks)).lazy()})
    return tables.having({"blocks": scan_rows(tables.block_files, "blocks")})


def without_blocks(tables: Tables, blocks: pl.DataFrame) -> Tables:
    """The tables without some blocks, (launch, block), on all ranks; the files that have them are written anew.

    `memory` and `phases` keep their rows, which their readers join with `blocks`. The tables that were given are not to
    be used any more.
    """
    dropped, named = 0, set(blocks.rows())
    for part in tables.parts:
        if not any(part.launch == launch and part.first <= block <= part.last for launch, block in named):
            continue
        for name, path in part.files.items():
            rows = _read(path)
            kept = rows.join(blocks, on=["launch", "block"], how="anti")
            dropped += rows.height - kept.height if name == "steps" else 0
            write_parquet(kept, path)
    tables = map_blocks(tables, lambda rows: rows.join(blocks, on=["launch", "block"], how="anti"))
    frames = scan_parts(tables.parts, Path(tables.scratch.name)) if tables.scratch else {}
    return tables.having(frames, dropped_samples=tables.dropped_samples + dropped)


def _read(path: Path) -> pl.DataFrame:
    return pl.read_parquet(path, glob=False, hive_partitioning=False)


def of_launches(tables: Tables, launches: frozenset[int]) -> Tables:
    """The records of some launches; the same object if these are all of them."""
    of_ranks: list[RankFile | Gap] = [*tables.ranks, *(gap for gap in tables.gaps if gap.rank is not None)]
    if launches >= tables.launches.union(each.launch for each in of_ranks):
        return tables
    chosen = pl.col("launch").is_in(sorted(launches))
    return tables.having(
        {name: getattr(tables, name).filter(chosen) for name in SCHEMAS},
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


def joined(runs: Sequence[Tables]) -> Tables:
    """The records of several runs as those of one, their launches renumbered to follow on; all in memory."""
    first = 0
    frames: dict[str, list[pl.DataFrame]] = {name: [] for name in SCHEMAS}
    ranks: list[RankFile] = []
    for run in runs:
        for name, several in frames.items():
            several.append(in_memory(getattr(run, name).with_columns(pl.col("launch") + first)))
        ranks += [replace(rank, launch=rank.launch + first) for rank in run.ranks]
        first = max((rank.launch for rank in ranks), default=-1) + 1
    return EMPTY.having(
        {name: pl.concat(several, how="diagonal").lazy() for name, several in frames.items()},
        ranks=tuple(ranks),
        gaps=tuple(gap for run in runs for gap in run.gaps),
        dropped_samples=sum(run.dropped_samples for run in runs),
        dropped_blocks=sum(run.dropped_blocks for run in runs),
    )


def publish_tables(folder: RunFolder, tables: Tables) -> None:
    """Move the files of the tables into the run's folder, table by table; OSError where that fails.

    A table that has no rows, such as `fabric` without a size sweep, becomes one empty file. The tables are not to be
    used any more.
    """
    for name in PUBLISHED:
        target = folder.table(name)
        unfinished = target.with_name(f".{target.name}.part")
        _remove(unfinished)
        unfinished.mkdir()
        try:
            step_files = tuple(part.files[name] for part in tables.parts if name in part.files)
            files = tables.block_files if name == "blocks" else step_files
            for number, path in enumerate(files):
                shutil.move(path, unfinished / f"part-{number:06}.parquet")
            if not files:
                write_parquet(pl.DataFrame(schema=SCHEMAS[name]), unfinished / "part-000000.parquet")
            _remove(target)
            unfinished.rename(target)
        finally:
            _remove(unfinished)


def read_published(folder: RunFolder, name: str) -> pl.DataFrame:
    """A table from the run's folder. OSError and polars' errors where it is missing or damaged."""
    return pl.read_parquet(folder.table(name), glob=False, hive_partitioning=False)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Write a file by rename; OSError where that fails."""
    unfinished = path.with_suffix(".part")
    try:
        frame.write_parquet(unfinished, compression="lz4", metadata={"schema": TABLE_SCHEMA})
        unfinished.replace(path)
    except pl.exceptions.PolarsError as error:  # polars has one error for all that the system may report
        full = shutil.disk_usage(path.parent).free < 2**20
        code = errno.ENOSPC if full else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error
