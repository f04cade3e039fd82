"""Tables of steps and collectives, which grow with the run: in memory while they are small, in files once they are not.

A file holds a few whole blocks of all ranks, so whatever is asked of a block needs one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from scaling.records.columns import SCHEMAS
from scaling.records.frames import PART, Frame
from scaling.records.pile import Scratch, write_parquet

TABLES = ("steps", "buckets", "fabric", "parameters")
"""Tables of steps, which grow with the run."""
MEMORY_ROWS = 1_500_000
"""Beyond these rows in all, the tables go to files: about 250 MB."""


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

    scratch: Scratch
    """Where the files lie."""
    parts: list[Part] = field(default_factory=list)
    in_files: bool = False
    """Whether rows are in files; all of them are then."""
    _kept: list[Mapping[str, pl.DataFrame]] = field(default_factory=list)
    _rows: int = 0
    _written: int = 0
    _files: dict[str, list[Path]] = field(default_factory=lambda: {name: [] for name in TABLES})

    def add(self, frames: Mapping[str, pl.DataFrame]) -> None:
        """Rows of the part that comes next. OSError where they cannot be written."""
        self._kept.append(frames)
        self._rows += sum(frames[name].height for name in TABLES)
        if self.in_files or self._rows > MEMORY_ROWS:
            self.to_files()

    def to_files(self) -> Path:
        """Rows that are in memory go to files, as all that follow; the folder of the files."""
        self.in_files = True
        while self._kept:
            self._written += 1
            self.took(write_frames(self._kept.pop(0), self.scratch.path, part_name(self._written)))
        return self.scratch.path

    def took(self, files: Mapping[str, Path]) -> None:
        """Rows that are in files of the folder already, by a table's name."""
        for name, path in files.items():
            self._files[name].append(path)

    @property
    def files(self) -> dict[str, tuple[Path, ...]]:
        """The files of each table that has rows in files."""
        return {name: tuple(files) for name, files in self._files.items() if files}

    def finish(self) -> dict[str, Frame]:
        """All rows."""
        if not self.in_files:
            empty = {name: pl.DataFrame(schema=SCHEMAS[name]) for name in TABLES}
            return {
                name: pl.concat([empty[name], *(frames[name] for frames in self._kept)]) for name in TABLES
            }
        return {
            name: _scan(self.scratch.path / name) if files else pl.LazyFrame(schema=_in_files(name))
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
