"""Rows of tables that lie in files: a selection at once, or a few whole rounds at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.records.clock import Ints

STEP_ROWS = 40_000
"""Rows of steps that `few_rounds` reads at a time; there may be ten times as many of collectives."""

PART = "part"
"""Column of a table in files that names the part; a selection by it opens the files of these parts alone."""
ITS_PART = pl.col(f"^{PART}$")
"""To keep that column in a selection; nothing in a table in memory."""

Frame = pl.LazyFrame
"""A table, which is read where it is asked for."""


def in_memory(frame: Frame) -> pl.DataFrame:
    """The rows of a selection; files are read and reduced a part at a time."""
    return frame.lazy().drop(PART, strict=False).collect(engine="streaming")


def few_rounds(steps: Frame, others: Frame) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Rows of two tables in memory, a few whole rounds at a time, in the order of launches and rounds.

    The rounds are those of `steps`, and `others` has rows of the same blocks; nothing where there are none. With the
    column PART, each file is opened for the rounds that it holds; rows without it are in memory and come at once.
    """
    if PART not in steps.collect_schema():
        first, second = in_memory(steps), in_memory(others)
        if first.height:
            yield first, second
        return
    for chosen in round_selections(steps, STEP_ROWS):
        yield _both(steps, others, chosen)  # and keep none of them: they may be a million rows


def _both(steps: Frame, others: Frame, chosen: pl.Expr) -> tuple[pl.DataFrame, pl.DataFrame]:
    first, second = pl.collect_all([of.filter(chosen).drop(PART) for of in (steps, others)])
    return first, second


def round_selections(steps: Frame, rows: int) -> Iterator[pl.Expr]:
    """Selections of a few whole rounds each, in the order of launches and rounds; `steps`: in files.

    `rows`: about so many of `steps` each, or those of one round.
    """
    of_rounds = steps.group_by("launch", "round").agg(parts=pl.col(PART).unique(), rows=pl.len())
    counts = in_memory(of_rounds).sort("launch", "round")
    for (launch,), part in counts.partition_by("launch", as_dict=True, maintain_order=True).items():
        batch = (part["rows"].cum_sum() - part["rows"]) // rows
        for rounds in part.with_columns(batch=batch).partition_by("batch", maintain_order=True):
            chosen = (pl.col("launch") == launch) & pl.col("round").is_in(rounds["round"].to_list())
            yield chosen & pl.col(PART).is_in(rounds["parts"].explode().unique().to_list())


def in_order(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """The rows sorted by columns of numbers; no copy where they are in order, as those that were read mostly are."""
    behind = np.zeros(max(frame.height - 1, 0), dtype=bool)
    for name in reversed(columns):
        values = frame[name].to_numpy()
        behind = (values[1:] < values[:-1]) | ((values[1:] == values[:-1]) & behind)
    return frame.sort(columns) if behind.any() else frame


def joined(frame: Frame, keys: pl.DataFrame, on: Sequence[str], *, there: bool) -> Frame:
    """The rows of a table whose keys are in `keys`, or are not."""
    return frame.lazy().join(keys.lazy(), on=on, how="semi" if there else "anti")


ORDER = ("launch", "block", "rank", "step")
"""How rows follow each other where they are read: a block at a time, rank by rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The rows of a table by their place; every place is one run of rows, reduced without a hash of every row."""

    frame: pl.DataFrame
    """All rows, in the order of their places."""
    place: tuple[str, ...]
    begins: Ints
    """The first row of each run."""

    @property
    def lengths(self) -> Ints:
        """Rows of each run."""
        return np.diff(self.begins, append=self.frame.height)

    def least(self, values: Ints) -> Ints:
        """The smallest value of each run; `values`: one a row."""
        return np.minimum.reduceat(values, self.begins) if len(values) else values

    def most(self, values: Ints) -> Ints:
        """The largest value of each run."""
        return np.maximum.reduceat(values, self.begins) if len(values) else values

    def inside(self, larger: Runs) -> Ints:
        """How many of these runs lie in each run of `larger`, which are runs of the same rows."""
        return np.diff(np.searchsorted(self.begins, np.append(larger.begins, self.frame.height)))

    def table(self, also: Sequence[str] = (), **columns: Ints) -> pl.DataFrame:
        """A row for each run: its place, its first row's values in the columns of `also`, and other columns."""
        first = self.frame.select(*self.place, *also)[self.begins]
        return first.with_columns(**{name: pl.Series(values) for name, values in columns.items()})


def runs(frame: pl.DataFrame, place: Sequence[str]) -> Runs:
    """Rows by their place, whose columns are among ORDER and hold a number in every row."""
    order = tuple(name for name in ORDER if name in place)
    begins = _begins(frame, order)
    if not _in_order(frame, order, begins):
        frame = frame.sort(order, maintain_order=True)
        begins = _begins(frame, order)
    return Runs(frame=frame, place=order, begins=begins)


def _begins(frame: pl.DataFrame, order: Sequence[str]) -> Ints:
    """The rows whose place is not that of the row before."""
    new = np.zeros(frame.height, dtype=bool)
    new[:1] = True
    for name in order:
        values = frame[name].to_numpy()
        new[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(new)


def _in_order(frame: pl.DataFrame, order: Sequence[str], begins: Ints) -> bool:
    """Whether each run's place is beyond the one before, so that no place occurs twice."""
    after = np.zeros(max(len(begins) - 1, 0), dtype=bool)
    for name in reversed(order):
        values = frame[name].to_numpy()[begins]
        after = (values[1:] > values[:-1]) | ((values[1:] == values[:-1]) & after)
    return bool(after.all())
