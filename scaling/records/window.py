"""The steps of a few blocks at a time, of all ranks, as frames.

A block of all ranks is the unit of every statistic, and a rank's file has its blocks one after the other. The reader
therefore takes the same few blocks from every file in turn (records.gathered makes columns of them).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from scaling.records.clock import Ints
from scaling.records.columns import BLOCK_NAMES, LINES
from scaling.records.gathered import Gathered, gather
from scaling.records.rank import Stored

WINDOW_ROWS = 400_000
"""Rows of steps and collectives in a window: about 70 MB of columns."""
PIECE_RANKS = 64
"""Ranks of a block that are decoded before it is known how many rows each of them has."""
BATCH_BYTES = 16 << 20
"""What is read of the files at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some blocks of a launch with all rows of all ranks, in the order of blocks and ranks.

    A block that is too large for a window has several, which follow each other.
    """

    first: int
    last: int
    """Numbers of its first and its last block; no other window has rows of blocks between them."""
    frames: Mapping[str, pl.DataFrame]
    """`blocks` of these ranks, `steps`, `buckets`, `fabric` and `parameters`: columns of records.columns.SCHEMAS."""
    lost: int
    """Steps that belong to none of the blocks."""
    continues: bool = False
    """Whether the next window has further ranks of the last block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Whole blocks of a launch and where their steps lie. It can go to another process."""

    launch: int
    blocks: pl.DataFrame
    """A row for each block and rank: the table `blocks` with the columns of records.columns.LINES."""
    files: Mapping[int, Stored]
    """By rank."""

    def parts(self, most_bytes: int) -> Iterator[Stretch]:
        """Stretches of it that follow each other, of whole blocks, with lines of about `most_bytes` each."""
        size = pl.col("lines_end") - pl.col("lines_begin")
        sizes = self.blocks.group_by("block").agg(bytes=size.sum()).sort("block")
        before = sizes["bytes"].cum_sum() - sizes["bytes"]
        for part in sizes.with_columns(part=before // most_bytes).partition_by("part", maintain_order=True):
            inside = pl.col("block").is_between(part["block"][0], part["block"][-1])
            yield dataclasses.replace(self, blocks=self.blocks.filter(inside))


@dataclass(slots=True)
class _Some:
    """What a window will have."""

    first: int = 0
    last: int = 0
    owners: list[Ints] = field(default_factory=list)
    """Rows of the stretch's blocks."""
    rows: Gathered = field(default_factory=Gathered)

    def add(self, number: int, owners: Ints, piece: Gathered) -> None:
        """Some ranks of a block."""
        if not self.owners:
            self.first = number
        self.last = number
        self.owners.append(owners)
        self.rows.extend(piece)

    def window(self, blocks: pl.DataFrame, *, continues: bool = False) -> Window:
        """The window; the rows are given up. `blocks`: of the stretch."""
        own = blocks[np.concatenate(self.owners)].drop(list(LINES))
        return Window(
            first=self.first,
            last=self.last,
            continues=continues,
            frames={"blocks": own, **self.rows.frames(blocks.select(list(BLOCK_NAMES)))},
            lost=self.rows.lost,
        )


def windows(stretch: Stretch, rows: int = WINDOW_ROWS) -> Iterator[Window]:
    """All blocks of a stretch, in the order of their numbers. OSError where a file cannot be read again.

    `rows`: at most so many in a window, if PIECE_RANKS ranks of a block have no more.
    """
    blocks = stretch.blocks
    some = _Some()
    for members in _batches(blocks, BATCH_BYTES):
        texts = _read(stretch.files, blocks, np.concatenate(list(members.values())))
        for number, of in members.items():
            files = [stretch.files[rank] for rank in blocks["rank"][of].to_list()]
            for owners, piece in _pieces(number, of, texts, files, rows):
                if some.owners and some.rows.height + piece.height > rows:
                    yield some.window(blocks, continues=some.last == number)
                    some = _Some()
                some.add(number, owners, piece)
    if some.owners:
        yield some.window(blocks)


def wholes(found: Iterator[Window]) -> Iterator[Iterator[Window]]:
    """The windows of whole blocks: those of one that has several, each other by itself."""
    for first in found:
        yield _with_rest(first, found)


def _with_rest(window: Window, after: Iterator[Window]) -> Iterator[Window]:
    yield window
    while window.continues:
        window = next(after)
        yield window


def _pieces(
    number: int, of: Ints, texts: Mapping[int, bytes], files: Sequence[Stored], rows: int
) -> Iterator[tuple[Ints, Gathered]]:
    """One block: as a whole if it has at most about `rows` rows, else some ranks at a time; each with its part of `of`.

    `of`: the block's rows in the stretch's `blocks`.
    """
    first, each = 0, min(PIECE_RANKS, len(of))
    while first < len(of):
        piece, at = Gathered(), first
        gather(number, of[at : at + each], texts, files[at : at + each], piece)
        at += each
        if first == 0 and at < len(of):
            each = max(1, each * rows // max(1, piece.height))  # all ranks have about as many rows
            gather(number, of[at:each], texts, files[at:each], piece)
            at = max(at, each)
        yield of[first:at], piece
        first = at


def _batches(blocks: pl.DataFrame, most_bytes: int) -> Iterator[dict[int, Ints]]:
    """Rows of `blocks` by their numbers, in order: of blocks whose lines together have about `most_bytes`."""
    number = blocks["block"].to_numpy()
    size = (blocks["lines_end"] - blocks["lines_begin"]).to_numpy()
    order = np.lexsort((blocks["rank"].to_numpy(), number))
    numbers, begins = np.unique(number[order], return_index=True)
    batch, total = dict[int, Ints](), 0
    for of_number, of in zip(numbers.tolist(), np.split(order, begins[1:]), strict=False):
        batch[of_number] = of
        total += int(size[of].sum())
        if total >= most_bytes:
            yield batch
            batch, total = {}, 0
    if batch:
        yield batch


def _read(files: Mapping[int, Stored], blocks: pl.DataFrame, wanted: Ints) -> dict[int, bytes]:
    """The lines of some blocks, by their rows in `blocks`; from each file in one piece."""
    texts: dict[int, bytes] = {}
    rank, begins, ends = (blocks[name].to_numpy() for name in ("rank", "lines_begin", "lines_end"))
    by_file = wanted[np.argsort(rank[wanted], kind="stable")]
    for part in np.split(by_file, np.flatnonzero(np.diff(rank[by_file])) + 1):
        begin, end = int(begins[part].min()), int(ends[part].max())
        piece = files[int(rank[part[0]])].read(begin, end)
        for row, low, high in zip(
            part.tolist(), (begins[part] - begin).tolist(), (ends[part] - begin).tolist(), strict=True
        ):
            texts[row] = piece[low:high]
    return texts
