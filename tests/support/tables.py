"""A run's tables as frames in memory, which a test can look into."""

from __future__ import annotations

import polars as pl

from scaling.records import check, collect
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan
from scaling.records.tables import PUBLISHED, Tables, in_memory
from scaling.settings.plan import Plan


def unchecked(folder: RunFolder, plan: Plan | None = None) -> Tables:
    """What the rank files hold; its files go with it."""
    return collect.collect(folder, plan or read_plan(folder), _look)[0]


def _look(_tables: Tables) -> None:
    """Nobody looks at the rows while they are read."""


def collected(folder: RunFolder, plan: Plan | None = None) -> Tables:
    """What the rank files hold, before it is checked."""
    return loaded(unchecked(folder, plan))


def checked(folder: RunFolder, plan: Plan | None = None) -> Tables:
    """The same without the blocks that cannot be."""
    return loaded(check.read_checked(folder, plan or read_plan(folder)))


def loaded(tables: Tables) -> Tables:
    """The tables with their rows in memory; their files are not needed any more."""
    frames = {name: in_memory(getattr(tables, name)) for name in (*PUBLISHED, "memory")}
    return tables.having(frames, parts=(), block_files=(), scratch=None)


def sent_in(steps: pl.DataFrame, rows: pl.DataFrame, **told: int | str | pl.Expr) -> pl.DataFrame:
    """A collective in each of these steps, as a row of `rows`; a column that is not told is 0."""
    columns = {
        name: pl.lit(value, pl.Int64) if isinstance(value, int) else value for name, value in told.items()
    }
    made = steps.select(*(name for name in rows.columns if name in steps.columns), **columns)
    nothing = (pl.lit(0, rows.schema[name]).alias(name) for name in {*rows.columns} - {*made.columns})
    return made.with_columns(nothing).select(rows.columns)
