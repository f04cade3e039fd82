"""Rows of one place that follow each other: they are reduced without a hash of every row.

Rank files are read a block at a time, rank by rank, so rows mostly come in this order. Others are sorted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.records.clock import Ints

ORDER = ("launch", "block", "rank", "step")
"""How rows follow each other where they are read (records.gathered)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The rows of a table by their place; every place is one run of rows."""

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
