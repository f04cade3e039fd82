"""The records of a run as tables. Only whole blocks count; what is cut off or missing is reported, never filled in.

Absolute stamps come out on rank 0's clock (scaling.records.rank). Tables of steps and collectives grow with the run.
Those of a large run are in files, which are read where something is asked of them: select blocks and columns first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from scaling.records.columns import SCHEMAS
from scaling.records.frames import PART, Frame, in_memory
from scaling.records.paths import RunFolder
from scaling.records.pile import Scratch, write_parquet
from scaling.records.rank import RankFile
from scaling.records.ranks import Gap
from scaling.records.row_groups import append_files
from scaling.records.spill import TABLES, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All records of a run: a row for each block and rank, each step and rank, each collective and rank."""

    blocks: Frame
    steps: Frame
    buckets: Frame
    """Collectives in ddp_solo, probe, replay and pairs blocks."""
    fabric: Frame
    """Messages in the size sweep."""
    parameters: Frame
    """A row for each ddp_solo block, rank and parameter, in the order of registration: bytes, and when its gradient was
    ready since the step's begin, as the mean over the block's steps. Empty on a device."""
    memory: Frame = field(default_factory=lambda: pl.DataFrame(schema=SCHEMAS["memory"]))
    """What each rank held after each block."""
    ranks: tuple[RankFile, ...]
    gaps: tuple[Gap, ...]
    """What is missing."""
    dropped_samples: int
    """Steps that were written and belong to no whole block, or to one that was left out."""
    dropped_blocks: int = 0
    """Blocks that are missing, or were left out on all ranks because what they say cannot be."""
    parts: tuple[Part, ...] = ()
    """Stretches of blocks whose rows fit into memory; none where all rows are there."""
    files: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """Parquet files with all rows of a table one after the other, by its name; only while none of them was left out."""
    scratch: Scratch | None = None
    """Where files lie while the tables are used; None where all rows are in memory."""

    @property
    def empty(self) -> bool:
        """Whether no step was recorded."""
        return in_memory(self.steps.select("launch").head(1)).is_empty()

    @property
    def launches(self) -> frozenset[int]:
        """Those that have blocks."""
        return frozenset(in_memory(self.blocks.select("launch").unique())["launch"])

    def by_part(self) -> Iterator[Tables]:
        """The tables of a few blocks at a time, in memory."""
        if not self.parts:
            yield self
        for part in self.parts:
            tables = [getattr(self, name).lazy().filter(part.inside) for name in TABLES]
            rows = pl.collect_all([frame.drop(PART, strict=False) for frame in tables])
            frames = dict(zip(TABLES, rows, strict=True))
            blocks = in_memory(self.blocks.filter(part.inside))
            yield self.having({"blocks": blocks, **frames}, parts=())

    def having(self, frames: Mapping[str, Frame], **changes: Any) -> Tables:
        """The same with other rows, by a table's name."""
        files = {name: paths for name, paths in self.files.items() if name not in frames}
        return dataclasses.replace(self, **{"files": files, **changes, **frames})


EMPTY = Tables(
    blocks=pl.DataFrame(schema=SCHEMAS["blocks"]),
    steps=pl.DataFrame(schema=SCHEMAS["steps"]),
    buckets=pl.DataFrame(schema=SCHEMAS["buckets"]),
    fabric=pl.DataFrame(schema=SCHEMAS["fabric"]),
    parameters=pl.DataFrame(schema=SCHEMAS["parameters"]),
    ranks=(),
    gaps=(),
    dropped_samples=0,
)


def joined(runs: Sequence[Tables]) -> Tables:
    """The records of several runs as those of one, whose launches are numbered on."""
    first = 0
    frames: dict[str, list[pl.DataFrame]] = {name: [] for name in SCHEMAS}
    ranks: list[RankFile] = []
    for run in runs:
        for name, held in frames.items():
            rows = getattr(run, name).drop(PART, strict=False)
            held.append(in_memory(rows.with_columns(pl.col("launch") + first)))
        ranks += [dataclasses.replace(rank, launch=rank.launch + first) for rank in run.ranks]
        first = max((rank.launch for rank in ranks), default=-1) + 1
    return EMPTY.having(
        {name: pl.concat(held, how="diagonal") for name, held in frames.items()},
        ranks=tuple(ranks),
        gaps=tuple(gap for run in runs for gap in run.gaps),
        dropped_samples=sum(run.dropped_samples for run in runs),
        dropped_blocks=sum(run.dropped_blocks for run in runs),
    )


def write_tables(folder: RunFolder, tables: Tables) -> None:
    """Write the derived Parquet files, by rename. OSError where that fails."""
    for name in ("blocks", *TABLES):
        path = folder.table(name)
        part = path.with_name(f".{path.name}.part")
        try:
            if name in tables.files:
                append_files(tables.files[name], part)
            else:
                write_parquet(getattr(tables, name).drop(PART, strict=False), part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
