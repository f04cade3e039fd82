"""Tables in memory or in files: to ask for rows of them, a few places or rounds at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from scaling.records.clock import Ints

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
    for chosen in round_selections(steps, STEP_ROWS):
        yield _both(steps, others, chosen)  # and keep none of them: they may be a million rows


def _both(steps: Frame, others: Frame, chosen: pl.Expr) -> tuple[pl.DataFrame, pl.DataFrame]:
    first, second = pl.collect_all([of.lazy().filter(chosen).drop(PART) for of in (steps, others)])
    return first, second


def round_selections(steps: Frame, rows: int) -> Iterator[pl.Expr]:
    """Selections of a few whole rounds each, in the order of launches and rounds; `steps`: in files.

    `rows`: about so many of `steps` each, or those of one round.
    """
    of_rounds = steps.lazy().group_by("launch", "round").agg(parts=pl.col(PART).unique(), rows=pl.len())
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


def few(frame: Frame, place: tuple[str, str], rows: int = BLOCK_ROWS) -> Iterator[pl.DataFrame]:
    """All rows of a few places at a time, about `rows` of them, in the order of places; the rows of each as they came.

    What is computed place by place needs memory for these rows only. `place`: two columns of numbers.
    """
    if isinstance(frame, pl.DataFrame) and frame.height <= rows:
        yield frame
        return
    first, second = place
    counts = in_memory(frame.lazy().group_by(place).agg(rows=pl.len())).sort(place)
    batch = (counts["rows"].cum_sum() - counts["rows"]) // rows
    for part in counts.with_columns(batch=batch).partition_by("batch", maintain_order=True):
        spans = part.group_by(first).agg(low=pl.col(second).min(), high=pl.col(second).max())
        chosen = [
            (pl.col(first) == value) & pl.col(second).is_between(low, high)
            for value, low, high in spans.rows()
        ]
        yield in_memory(frame.filter(pl.any_horizontal(chosen)))


def joined(frame: Frame, keys: pl.DataFrame, on: Sequence[str], *, there: bool) -> Frame:
    """The rows of a table whose keys are in `keys`, or are not."""
    how: Literal["semi", "anti"] = "semi" if there else "anti"
    if isinstance(frame, pl.DataFrame):
        return frame.join(keys, on=on, how=how)
    return frame.join(keys.lazy(), on=on, how=how)


def one_frame(frames: Sequence[Frame]) -> Frame:
    """The rows of several, one after the other."""
    held = [frame for frame in frames if isinstance(frame, pl.DataFrame)]
    if len(held) == len(frames):
        return pl.concat(held)
    return pl.concat([frame.lazy() for frame in frames])


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
