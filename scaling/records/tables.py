"""The records of a run as tables: Parquet files in a folder.

    RUN/steps.parquet/part-000000.parquet, part-000001.parquet, ...      and so blocks, buckets, fabric, parameters

A file of the step tables has a few whole blocks of all ranks, one of `blocks` some ranks. `memory` and `phases` are not
published.

Only whole blocks count; what is cut off or missing is reported, never filled in. Absolute stamps come out on rank 0's
clock (records.rank_file). While tables are made and analysed, their files lie in a temporary folder, in the run's where
that can be written to. There each file's folder names its part, so that a selection opens few files.

Versions of the tables, kept in each file's metadata (not checked on reading):

    1   the only one so far
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from scaling.records.frames import PART, SCHEMAS, Frame, in_memory
from scaling.records.paths import RunFolder, is_own
from scaling.records.rank_file import Gap, RankFile

TABLE_SCHEMA = "1"
STEP_TABLES = ("steps", "buckets", "fabric", "parameters")
"""Tables that are read from lines of steps, in parts; they grow with the run."""
PUBLISHED = ("blocks", *STEP_TABLES)
"""Tables that stay in the run's folder."""


@dataclass(slots=True)
class Scratch:
    """A temporary folder for the files of tables; it is made with the first one, and goes with the tables."""

    parent: Path
    """Where it is made, if it is this user's own: another one could put links in the place of the files."""
    kept: TemporaryDirectory[str] | None = None

    @property
    def path(self) -> Path:
        """The folder. OSError where it cannot be made."""
        if self.kept is None:
            mine = is_own(RunFolder(self.parent))
            self.kept = TemporaryDirectory(prefix=".tables-", dir=self.parent if mine else None)
        return Path(self.kept.name)


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
    memory: Frame = field(default_factory=lambda: pl.LazyFrame(schema=SCHEMAS["memory"]))
    """What each rank held after each block."""
    phases: Frame = field(default_factory=lambda: pl.LazyFrame(schema=SCHEMAS["phases"]))
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
    """Files of `blocks`."""
    scratch: Scratch | None = None
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


EMPTY = Tables(
    blocks=pl.LazyFrame(schema=SCHEMAS["blocks"]),
    steps=pl.LazyFrame(schema=SCHEMAS["steps"]),
    buckets=pl.LazyFrame(schema=SCHEMAS["buckets"]),
    fabric=pl.LazyFrame(schema=SCHEMAS["fabric"]),
    parameters=pl.LazyFrame(schema=SCHEMAS["parameters"]),
    ranks=(),
    gaps=(),
    dropped_samples=0,
)


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


def scan_parts(parts: Iterable[Part], scratch: Scratch) -> dict[str, Frame]:
    """The step tables of all parts."""
    present = {name for part in parts for name in part.files}
    return {name: _scan(scratch.path / name) if name in present else _empty(name) for name in STEP_TABLES}


def _scan(folder: Path) -> Frame:
    """All rows of a table, part by part; folders around it may have names that look like columns or patterns."""
    return pl.scan_parquet(folder, glob=False, hive_partitioning=True, hive_schema={PART: pl.String})


def _empty(name: str) -> Frame:
    return pl.LazyFrame(schema={**SCHEMAS[name], PART: pl.String})


def write_rows(frames: Iterable[pl.DataFrame], name: str, scratch: Scratch) -> tuple[Path, ...]:
    """Write rows of another table, a file for each frame; OSError where that fails."""
    files: list[Path] = []
    for rows in frames:
        path = scratch.path / name / f"{len(files):09}.parquet"
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
    frames = scan_parts(tables.parts, tables.scratch) if tables.scratch else {}
    return tables.having(frames, dropped_samples=tables.dropped_samples + dropped)


def _read(path: Path) -> pl.DataFrame:
    return pl.read_parquet(path, glob=False, hive_partitioning=False)


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
    used any more. Another user's folder gets none, as in `Scratch`.
    """
    for name in PUBLISHED if is_own(folder) else ():
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
