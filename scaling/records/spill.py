"""Tables of steps and collectives, which grow with the run: in memory while they are small, in files once they are not.

A file holds a few whole blocks of all ranks, so whatever is asked of a block needs one of them.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import polars as pl

from scaling.records.columns import SCHEMAS

TABLE_SCHEMA = "1"
"""Version of the derived tables, kept in each Parquet file's metadata."""
TABLES = ("steps", "buckets", "fabric", "parameters")
"""Tables of steps, which grow with the run."""
MEMORY_ROWS = 1_500_000
"""Beyond these rows in all, the tables go to files: about 250 MB."""

STEP_ROWS = 40_000
"""Rows of steps that `few_rounds` reads at a time; there may be ten times as many of collectives."""

BLOCK_ROWS = 200_000
"""Rows of blocks that `few` gives at a time; a run of 4,096 ranks has over a million."""

PART = "part"
"""Column of a table in files that names the part; a selection by it opens the files of these parts alone."""
ITS_PART = pl.col(f"^{PART}$")
"""To keep that column in a selection; nothing in a table in memory."""

Frame = pl.DataFrame | pl.LazyFrame
"""A table in memory, or one in files that is read where it is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of blocks of one launch; no other part has rows of them."""

    launch: int
    first: int
    last: int
    """Numbers of its first and its last block."""

    @property
    def inside(self) -> pl.Expr:
        """Whether a row is of it."""
        return (pl.col("launch") == self.launch) & pl.col("block").is_between(self.first, self.last)


@dataclass(slots=True)
class Growing:
    """The tables of a run while its parts are read, one after the other."""

    folder: Path
    """Where files may lie while the tables are used."""
    parts: list[Part] = field(default_factory=list)
    scratch: TemporaryDirectory[str] | None = None
    """Folder of the files, which is removed with this object; None while all is in memory."""
    _kept: list[Mapping[str, pl.DataFrame]] = field(default_factory=list)
    _rows: int = 0
    _written: int = 0
    _files: dict[str, list[Path]] = field(default_factory=lambda: {name: [] for name in TABLES})

    def add(self, part: Part, frames: Mapping[str, pl.DataFrame]) -> None:
        """The rows of a part. OSError where they cannot be written."""
        self.parts.append(part)
        self._kept.append(frames)
        self._rows += sum(frames[name].height for name in TABLES)
        if self.scratch is not None or self._rows > MEMORY_ROWS:
            self.to_files()

    def to_files(self) -> str:
        """Rows that are in memory go to files, as all that follow; the folder of the files."""
        if self.scratch is None:
            writable = os.access(self.folder, os.W_OK)
            self.scratch = TemporaryDirectory(prefix=".tables-", dir=self.folder if writable else None)
        while self._kept:
            self._written += 1
            self._note(write_frames(self._kept.pop(0), Path(self.scratch.name), part_name(self._written)))
        return self.scratch.name

    def took(self, part: Part, files: Mapping[str, Path]) -> None:
        """The rows of a part that are in files of the folder already, by a table's name."""
        self.parts.append(part)
        self._note(files)

    def _note(self, files: Mapping[str, Path]) -> None:
        for name, path in files.items():
            self._files[name].append(path)

    @property
    def files(self) -> dict[str, tuple[Path, ...]]:
        """The files of each table that has rows in files."""
        return {name: tuple(files) for name, files in self._files.items() if files}

    def finish(self) -> dict[str, Frame]:
        """All rows."""
        if self.scratch is None:
            empty = {name: pl.DataFrame(schema=SCHEMAS[name]) for name in TABLES}
            return {
                name: pl.concat([empty[name], *(frames[name] for frames in self._kept)]) for name in TABLES
            }
        return {
            name: _scan(Path(self.scratch.name, name)) if files else pl.LazyFrame(schema=_in_files(name))
            for name, files in self._files.items()
        }


def part_name(*numbers: int) -> str:
    """The name of a part in files; names sort as their numbers do."""
    return "-".join(f"{number:09}" for number in numbers)


def _scan(folder: Path) -> pl.LazyFrame:
    """All rows of a table, part by part; folders around it may have names that look like columns or patterns."""
    return pl.scan_parquet(folder, glob=False, hive_partitioning=True, hive_schema={PART: pl.String})


def _in_files(name: str) -> dict[str, Any]:
    """Columns of a table in files."""
    return {**SCHEMAS[name], PART: pl.String}


def write_frames(frames: Mapping[str, pl.DataFrame], scratch: Path, part: str) -> dict[str, Path]:
    """Write the tables that have rows to files of a part in the folder `scratch`; OSError where that fails."""
    files = {
        name: scratch / name / f"{PART}={part}" / "rows.parquet" for name in TABLES if frames[name].height
    }
    for name, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)  # by a process that died
        write_parquet(frames[name], file)
    return files


def in_memory(frame: Frame) -> pl.DataFrame:
    """The rows of a selection; those of files are read and reduced a part at a time."""
    if isinstance(frame, pl.DataFrame):
        return frame
    return frame.drop(PART, strict=False).collect(engine="streaming")


def few_rounds(steps: Frame, others: Frame) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Rows of two tables in memory, in the order of launches and rounds: of files a few whole rounds at a time.

    The rounds are those of `steps`, and `others` has rows of the same blocks; nothing where there are none. Of files,
    both have the column PART, and each file is opened for the rounds that it holds.
    """
    if isinstance(steps, pl.DataFrame) and isinstance(others, pl.DataFrame):
        if steps.height:
            yield steps, others
        return
    of_rounds = steps.lazy().group_by("launch", "round").agg(parts=pl.col(PART).unique(), rows=pl.len())
    counts = in_memory(of_rounds).sort("launch", "round")
    for (launch,), part in counts.partition_by("launch", as_dict=True, maintain_order=True).items():
        batch = (part["rows"].cum_sum() - part["rows"]) // STEP_ROWS
        for rounds in part.with_columns(batch=batch).partition_by("batch", maintain_order=True):
            chosen = (pl.col("launch") == launch) & pl.col("round").is_in(rounds["round"].to_list())
            chosen &= pl.col(PART).is_in(rounds["parts"].explode().unique().to_list())
            first, second = pl.collect_all([of.lazy().filter(chosen).drop(PART) for of in (steps, others)])
            yield first, second


def few(frame: pl.DataFrame, place: Sequence[str], rows: int = BLOCK_ROWS) -> Iterator[pl.DataFrame]:
    """All rows of a few places at a time, about `rows` of them, in the order of places; the rows of each as they came.

    What is computed place by place needs memory for these rows only.
    """
    if frame.height <= rows:
        yield frame
        return
    counts = frame.group_by(place).agg(rows=pl.len()).sort(place)
    batch = (counts["rows"].cum_sum() - counts["rows"]) // rows
    for part in counts.with_columns(batch=batch).partition_by("batch", maintain_order=True):
        yield frame.join(part.select(place), on=place, how="semi", maintain_order="left")


def joined(frame: Frame, keys: pl.DataFrame, on: Sequence[str], *, there: bool) -> Frame:
    """The rows of a table whose keys are in `keys`, or are not."""
    how: Literal["semi", "anti"] = "semi" if there else "anti"
    if isinstance(frame, pl.DataFrame):
        return frame.join(keys, on=on, how=how)
    return frame.join(keys.lazy(), on=on, how=how)


def write_parquet(frame: Frame, path: Path) -> None:
    """Write a table; OSError where that fails."""
    metadata = {"schema": TABLE_SCHEMA}
    try:
        if isinstance(frame, pl.DataFrame):
            frame.write_parquet(path, compression="lz4", metadata=metadata)
        else:
            frame.sink_parquet(path, compression="lz4", metadata=metadata)
    except pl.exceptions.PolarsError as error:  # polars has one error for all that the system may report
        full = shutil.disk_usage(path.parent).free < 2**20
        code = errno.ENOSPC if full else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error
